#include "policies/parallel/mpi_job.hpp"

#include <mpi.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>

#include "mgfl/base/error.hpp"

namespace mgfl::parallel::detail {

namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A gap so long means that we were stopped ourselves, perhaps with the whole job: the others deserve that
// time, too.
constexpr std::int64_t long_gap = 1'000'000'000;

// A rank's part of the window: its row, then its stage.
constexpr std::int64_t page = 4096;
constexpr std::int64_t stage_offset = (static_cast<std::int64_t>(sizeof(Row)) + page - 1) / page * page;

}  // namespace

std::byte* MpiJob::stage(int world_rank) const {
  return reinterpret_cast<std::byte*>(rows_[static_cast<std::size_t>(world_rank)]) + stage_offset;
}

void check_mpi(int status, std::string_view call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw RunError(concat(call, " failed: ", std::string_view(text, static_cast<std::size_t>(length))));
}

void say(const std::string& line) {
  const std::string text = line + "\n";
  std::fflush(stdout);
  // One write, so that lines of several ranks do not mix.
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

void end_at_once(int status) {
  // MPI_Abort may leave through std::exit, whose handlers may come back here.
  static std::atomic_flag ending = ATOMIC_FLAG_INIT;
  if (ending.test_and_set()) ::_exit(status);
  std::signal(SIGALRM, SIG_DFL);
  ::alarm(10);
  MPI_Abort(MPI_COMM_WORLD, status);
  ::_exit(status);
}

MpiJob::MpiJob(double timeout) : timeout_seconds(timeout) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);

  MPI_Comm guard;
  start_in_time("MPI_Comm_dup", [&] { return MPI_Comm_dup(MPI_COMM_WORLD, &guard); });
  check_mpi(MPI_Comm_set_errhandler(guard, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  guard_ = MPI_Comm_c2f(guard);

  MPI_Comm node;
  start_in_time("MPI_Comm_split_type", [&] {
    return MPI_Comm_split_type(guard, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
  });
  node_ = MPI_Comm_c2f(node);
  MPI_Comm_rank(node, &local_rank_);
  MPI_Comm_size(node, &local_size_);

  void* memory = nullptr;
  MPI_Win window;
  start_in_time("MPI_Win_allocate_shared", [&] {
    return MPI_Win_allocate_shared(stage_offset + stage_bytes, 1, MPI_INFO_NULL, node, &memory, &window);
  });
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window), "MPI_Win_lock_all");
  window_ = MPI_Win_c2f(window);
  Row* own = new (memory) Row();
  own->process = ::getpid();
  std::strcpy(own->slots[0].name, "job");
  taken_.assign(Row::max_slots, false);
  taken_[0] = true;

  std::vector<int> neighbours(static_cast<std::size_t>(local_size_));
  start_in_time("MPI_Allgather",
                [&] { return MPI_Allgather(&rank_, 1, MPI_INT, neighbours.data(), 1, MPI_INT, node); });
  rows_.assign(static_cast<std::size_t>(size_), nullptr);
  for (int local = 0; local < local_size_; ++local) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* base = nullptr;
    check_mpi(MPI_Win_shared_query(window, local, &bytes, &unit, &base), "MPI_Win_shared_query");
    rows_[static_cast<std::size_t>(neighbours[static_cast<std::size_t>(local)])] = static_cast<Row*>(base);
  }
}

void MpiJob::close() {
  if (closed_) return;
  closed_ = true;
  rows_.clear();  // their memory goes with the window
  const auto free_all = [&] {
    MPI_Win window = MPI_Win_f2c(window_);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Comm node = MPI_Comm_f2c(node_), guard = MPI_Comm_f2c(guard_);
    MPI_Comm_free(&node);
    MPI_Comm_free(&guard);
  };
  call_in_time(free_all, timeout_seconds, nullptr, [&] { end(2, in_vain("the end of the job")); });
}

void MpiJob::finalize() {
  call_in_time([] { MPI_Finalize(); }, timeout_seconds, nullptr,
               [&] {
                 speak_once(in_vain("MPI_Finalize"));
                 ::_exit(2);  // it is too late for MPI_Abort; the launcher ends the others
               });
}

void MpiJob::start_in_time(const char* call, function_ref<int()> make) const {
  int status = MPI_SUCCESS;
  call_in_time([&] { status = make(); }, timeout_seconds, nullptr,
               [&] { end(2, in_vain(concat(call, " at the start of the job"))); });
  check_mpi(status, call);
}

// The sentence for a wait during which no rank can see what another is doing.
std::string MpiJob::in_vain(std::string_view where) const {
  return concat(
      "mgfl: rank ", rank_, " waited ", timeout_seconds, " s in ", where,
      " for other ranks; all ranks end. See the other ranks' own output; raise the time-out if they "
      "were only slow.");
}

Members MpiJob::all_ranks() const {
  const auto count = static_cast<std::size_t>(size_);
  Members all{std::vector<int>(count), std::vector<int>(count), std::vector<std::int64_t>(count), rank_};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

int MpiJob::take_slot(std::string_view name) {
  int index = 1;
  while (index + 1 < Row::max_slots && taken_[static_cast<std::size_t>(index)]) ++index;
  taken_[static_cast<std::size_t>(index)] = true;
  Slot& slot = this->slot(index);
  // Not the steps, which a rank of the slot's last group may still be waiting for.
  slot.number = 0;
  slot.transfers = 0;
  slot.operation = 0;
  slot.inside = 0;
  const std::size_t length = std::min<std::size_t>(name.size(), Slot::max_name - 1);
  std::memcpy(slot.name, name.data(), length);
  slot.name[length] = 0;
  return index;
}

void MpiJob::give_slot(int index) { taken_[static_cast<std::size_t>(index)] = false; }

namespace {

// Whether this process takes its job's name first of all on this machine: that of a socket, which nothing
// has to remove, since it goes with the process.
bool takes_name_of_job() {
  const char* of_launcher = std::getenv("PMIX_NAMESPACE");
  const std::string name = concat("mgfl-", of_launcher ? of_launcher : std::to_string(::getppid()));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);  // the 0 before it means: no file
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) == 0 ||
         errno != EADDRINUSE;
}

}  // namespace

// The rows decide who speaks, and where this or another rank has none, the name. In this order one of those
// who ask gets both.
void MpiJob::speak_once(const std::string& sentence) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [](const Row* one) { return one != nullptr; });
  if ((row == rows_.end() || (*row)->reported.exchange(1) == 0) && takes_name_of_job())
    say(sentence);
  else  // another rank speaks: leave it the time to do so, and to end us
    std::this_thread::sleep_for(std::chrono::seconds(2));
}

void MpiJob::end(int status, const std::string& sentence) const {
  speak_once(sentence);
  end_at_once(status);
}

namespace {

bool is_transfer(Operation operation) {
  return operation == Operation::send || operation == Operation::recv || operation == Operation::exchange;
}

}  // namespace

Entered::Entered(Slot& slot, Operation operation, std::int64_t elements, std::int32_t dtype, int peer)
    : slot_(slot) {
  slot_.operation.store(static_cast<std::int32_t>(operation), std::memory_order_relaxed);
  slot_.elements.store(elements, std::memory_order_relaxed);
  slot_.dtype.store(dtype, std::memory_order_relaxed);
  slot_.peer.store(peer, std::memory_order_relaxed);
  slot_.heartbeat.store(now_ns(), std::memory_order_relaxed);
  slot_.inside.store(1, std::memory_order_relaxed);
  // Only collectives are compared by number: of transfers, ranks make unlike numbers.
  (is_transfer(operation) ? slot_.transfers : slot_.number).fetch_add(1, std::memory_order_release);
}

Entered::~Entered() { slot_.inside.store(0, std::memory_order_release); }

bool wait_until(function_ref<bool()> done, double seconds, Slot& slot) {
  for (int spin = 0; spin < 200; ++spin)
    if (done()) return true;

  const std::int64_t begin = now_ns();
  std::int64_t deadline = begin + static_cast<std::int64_t>(seconds * 1e9), last = begin;
  auto pause = std::chrono::microseconds(20);
  for (;;) {
    if (done()) return true;
    const std::int64_t now = now_ns();
    if (now - last > long_gap) deadline += now - last;
    last = now;
    slot.heartbeat.store(now, std::memory_order_relaxed);
    if (now > deadline) return false;
    if (now - begin < 2'000'000) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(500));
    }
  }
}

namespace {

// Counts the time of a call from a thread of its own.
class TimeLimit {
 public:
  TimeLimit(double seconds, Slot* slot, function_ref<void()> late)
      : seconds_(seconds), slot_(slot), late_(late), thread_([this] { count(); }) {}
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  void count() {
    std::int64_t last = now_ns(), deadline = last + static_cast<std::int64_t>(seconds_ * 1e9);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(50), [this] { return over_; })) {
      const std::int64_t now = now_ns();
      if (now - last > long_gap) deadline += now - last;
      last = now;
      if (slot_) slot_->heartbeat.store(now, std::memory_order_relaxed);
      if (now > deadline) late_();
    }
  }

  double seconds_;
  Slot* slot_;
  function_ref<void()> late_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

void call_in_time(function_ref<void()> call, double seconds, Slot* slot, function_ref<void()> late) {
  const TimeLimit limit(seconds, slot, late);
  call();
}

bool wait_all(void* requests, int count, double seconds, Slot& slot) {
  auto* array = static_cast<MPI_Request*>(requests);
  const auto all_done = [&] {
    int done = 0;
    check_mpi(MPI_Testall(count, array, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    return done != 0;
  };
  return wait_until(all_done, seconds, slot);
}

namespace {

// "T" while stopped, "Z" once ended, 0 where the process is gone or the machine has no /proc.
char process_state(std::int64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto bracket = text.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= text.size() ? '\0' : text[bracket + 2];
}

std::string describe_slot(const Slot& slot) {
  const auto operation = static_cast<Operation>(slot.operation.load());
  std::string text(name_of(operation));
  const std::int32_t dtype = slot.dtype.load(), peer = slot.peer.load();
  if (operation == Operation::exchange)
    text += concat(" of ", slot.elements.load(), " transfers");
  else if (dtype >= 0)
    text += concat(" of ", slot.elements.load(), " ", name_of(static_cast<c10::ScalarType>(dtype)));
  if (peer >= 0) text += concat(operation == Operation::send ? " to rank " : " from rank ", peer);
  return is_transfer(operation)
             ? text + concat(" (transfer ", slot.transfers.load(), " of group '", slot.name, "')")
             : text + concat(" (operation ", slot.number.load(), " of group '", slot.name, "')");
}

// What a rank is doing.
std::string describe_row(const Row& row, const Slot& group) {
  std::string text;
  const Slot* elsewhere = nullptr;
  for (const Slot& slot : row.slots)
    if (slot.inside.load()) elsewhere = &slot;
  if (elsewhere)
    text = concat("is in ", describe_slot(*elsewhere));
  else if (group.number.load() + group.transfers.load() > 0)
    text = concat("is in no communication; its last in this group was ", describe_slot(group));
  else
    text = "has not used this group yet";
  const char state = process_state(row.process.load());
  if (state == 'T' || state == 't') text += concat("; its process ", row.process.load(), " is stopped");
  if (state == 'Z' || state == 0) text += concat("; its process ", row.process.load(), " has ended");
  return text;
}

// What those members do that are neither this rank nor `named` already; ranks that do the same together.
std::string describe_others(const MpiJob& job, const Members& members, const std::vector<bool>& named) {
  std::map<std::string, std::vector<int>> doing;
  for (std::size_t i = 0; i < members.ranks.size(); ++i) {
    const Row* row = job.row(members.ranks[i]);
    if (static_cast<int>(i) == members.own || named[i] || !row) continue;
    doing[describe_row(*row, row->slots[members.slots[i]])].push_back(members.ranks[i]);
  }
  std::string text;
  for (const auto& [what, ranks] : doing)
    text += concat(ranks.size() == 1 ? "; rank " : "; each of the ranks ", some_of(ranks), " ", what);
  return text;
}

std::string describe_wait(const MpiJob& job, const Members& members, const std::vector<std::string>& causes,
                          const std::vector<int>& far, const std::vector<bool>& named) {
  std::string text =
      concat(describe_slot(job.slot(members.slots[static_cast<std::size_t>(members.own)])), " for ");
  if (!causes.empty())
    text += join(causes, " and for ");
  else if (!far.empty())
    text += concat("one of the ranks ", join(far), " on other machines");
  else
    text += "a message, though every rank entered it";
  return text + describe_others(job, members, named);
}

}  // namespace

std::string describe_absent(const MpiJob& job, const Members& members) {
  const Slot& own = job.slot(members.slots[static_cast<std::size_t>(members.own)]);
  const std::int64_t number = own.number.load(), now = now_ns();
  const std::int64_t steps = own.steps.load() - members.steps[static_cast<std::size_t>(members.own)];
  std::vector<std::string> absent, silent;
  std::vector<int> far;
  std::vector<bool> is_absent(members.ranks.size()), is_silent(members.ranks.size());
  for (std::size_t i = 0; i < members.ranks.size(); ++i) {
    if (static_cast<int>(i) == members.own) continue;
    const int rank = members.ranks[i];
    const Row* row = job.row(rank);
    if (!row) {
      far.push_back(rank);
      continue;
    }
    const Slot& slot = row->slots[members.slots[i]];
    if (slot.number.load() < number) {
      is_absent[i] = true;
      absent.push_back(concat("rank ", rank, ", which did not enter it: it ", describe_row(*row, slot)));
    } else if (const char state = process_state(row->process.load());
               state == 'T' || state == 't' || state == 'Z' || state == 0 ||
               slot.steps.load() - members.steps[i] < steps || now - slot.heartbeat.load() > 1'500'000'000) {
      is_silent[i] = true;
      silent.push_back(
          concat("rank ", rank, ", which entered it and stopped answering: it ", describe_row(*row, slot)));
    }
  }
  return absent.empty() ? describe_wait(job, members, silent, far, is_silent)
                        : describe_wait(job, members, absent, far, is_absent);
}

std::string describe_peers(const MpiJob& job, const Members& members, const std::vector<int>& peers) {
  std::vector<std::string> causes;
  std::vector<int> far;
  std::vector<bool> named(members.ranks.size());
  for (const int peer : peers) {
    const auto i = static_cast<std::size_t>(peer);
    const Row* row = job.row(members.ranks[i]);
    named[i] = true;
    if (row)
      causes.push_back(concat("rank ", members.ranks[i], ", which did not answer: it ",
                              describe_row(*row, row->slots[members.slots[i]])));
    else
      far.push_back(members.ranks[i]);
  }
  return describe_wait(job, members, causes, far, named);
}

}  // namespace mgfl::parallel::detail
