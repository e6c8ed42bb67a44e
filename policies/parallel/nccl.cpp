#include "policies/parallel/nccl.hpp"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/collective.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/mpi_job.hpp"
#include "policies/parallel/nccl_stream.hpp"
#include "policies/parallel/watchdog.hpp"

namespace mgfl::parallel {

namespace {

using detail::bytes_of;
using detail::Mark;
using detail::Operation;
using detail::Problem;
using detail::scaled;

std::string failure(ncclResult_t status, ncclComm_t comm) {
  const char* more = ncclGetLastError(comm);
  return more && *more ? concat(ncclGetErrorString(status), " (", more, ")") : ncclGetErrorString(status);
}

void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm = nullptr) {
  check_run(status == ncclSuccess, call, " failed: ", failure(status, comm),
            ". Each rank needs a GPU of its own; NCCL_DEBUG=WARN says more.");
}

// As one launch. Left by an exception, it is closed all the same: NCCL counts open groups.
class Together {
 public:
  Together() { check_nccl(ncclGroupStart(), "ncclGroupStart"); }
  ~Together() {
    if (open_) ncclGroupEnd();
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  void launch(ncclComm_t comm) {
    open_ = false;
    check_nccl(ncclGroupEnd(), "ncclGroupEnd", comm);
  }

 private:
  bool open_ = true;
};

ncclDataType_t type_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    default:
      return ncclUint8;
  }
}

bool is_narrow_float(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

std::int64_t size_of(const Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

// True division, as on the CPU: by a number of the host, the GPU multiplies by its reciprocal.
void divide(Tensor& tensor, int size) { tensor.div_(tensor.new_full({}, size)); }

// One call of this rank.
struct Step {
  Operation operation = Operation::none;
  std::int64_t elements = 0;
  std::int32_t dtype = -1;
  int peer = -1;  // world rank at the other end of a send or recv
  std::int64_t number = 0;
};

std::string describe(const Step& step, std::string_view group) {
  std::string text(detail::name_of(step.operation));
  if (step.operation == Operation::exchange)
    text += concat(" of ", step.elements, " transfers");
  else if (step.dtype >= 0)
    text +=
        concat(" of ", detail::describe_elements(step.elements, static_cast<c10::ScalarType>(step.dtype)));
  if (step.peer >= 0)
    text += concat(step.operation == Operation::send ? " to rank " : " from rank ", step.peer);
  return text + concat(" (call ", step.number, " in group '", group, "')");
}

// What all groups of this process share: the rank's place, how its job ends, and the watchdog.
struct Job {
  std::shared_ptr<detail::MpiJob> mpi;     // null under torchrun
  std::unique_ptr<Rendezvous> rendezvous;  // null under MPI
  int rank = 0, size = 1;
  c10::Device device;
  NcclOptions options;

  struct Group {
    ncclComm_t comm;
    std::string name;
    int slot;  // on the board of the MPI job
  };
  std::mutex mutex;
  std::map<int, Group> groups;
  int next_group = 0;
  std::unique_ptr<detail::Watchdog> watchdog;  // ends first: it uses the others

  Job(c10::Device device_, NcclOptions options_) : device(device_), options(options_) {}

  void start() {
    watchdog = std::make_unique<detail::Watchdog>(
        options.timeout_seconds, [this] { look(); },
        [this](const std::string& complaint) {
          end(concat("mgfl: rank ", rank, " waited ", options.timeout_seconds, " s in ", complaint,
                     "; all ranks end. See the other ranks' own output; raise the time-out if they were only "
                     "slow."));
        });
  }

  int add(Group group) {
    const std::lock_guard lock(mutex);
    groups.emplace(next_group, std::move(group));
    return next_group++;
  }

  void remove(int id) {
    const std::lock_guard lock(mutex);
    groups.erase(id);
  }

  // From the watchdog's thread: says that this rank is alive, and asks whether the others are.
  void look() {
    detail::use_gpu(device);  // a thread of its own would begin with GPU 0, and take memory there
    std::string fault;
    {
      const std::lock_guard lock(mutex);
      const std::int64_t now =
          std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
      for (const auto& [id, group] : groups) {
        if (mpi) mpi->slot(group.slot).heartbeat.store(now, std::memory_order_relaxed);
        ncclResult_t status = ncclSuccess;
        if (ncclCommGetAsyncError(group.comm, &status) == ncclSuccess && status != ncclSuccess &&
            status != ncclInProgress && fault.empty())
          fault = concat("mgfl: rank ", rank, ": NCCL failed in group '", group.name,
                         "': ", failure(status, group.comm), "; all ranks end.");
      }
    }
    if (!fault.empty()) end(fault);
    if (!rendezvous) return;
    if (const auto gone = rendezvous->departed())
      end(gone->told ? ""
                     : concat("mgfl: rank ", gone->rank, " left the job before its end, as rank ", rank,
                              " noticed; all ranks end. See that rank's own output."));
  }

  // Ends this process, and with it the job. NCCL's kernels, which may wait for another rank for ever, are
  // asked to stop; that they do not is no reason to stay.
  [[noreturn]] void end(const std::string& sentence) {
    std::thread([this] {
      const std::lock_guard lock(mutex);
      for (const auto& [id, group] : groups) ncclCommAbort(group.comm);
    }).detach();
    if (!sentence.empty() && rendezvous) {
      detail::say(sentence);
      rendezvous->announce_end();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (mpi) mpi->end(2, sentence);
    ::_exit(2);
  }
};

// A call that the watchdog waits for: first until the host has given it to the stream, then until the stream
// has done it.
class Flight : public detail::Watched {
 public:
  Flight(Job& job, std::string group, const Step& step, const detail::Members* members)
      : job_(job), group_(std::move(group)), step_(step), members_(members) {}

  void given_to_stream(Mark end) { end_ = std::move(end); }
  // Also where an exception was in the way of that.
  void leave_host() { left_host_.store(true, std::memory_order_release); }

  bool ended() override {
    if (!left_host_.load(std::memory_order_acquire)) return false;
    try {
      return !end_ || end_->reached();
    } catch (const std::exception& error) {
      job_.end(concat("mgfl: rank ", job_.rank, ": the GPU failed in ", describe(step_, group_), ": ",
                      error.what(), "; all ranks end."));
    }
  }

  std::string complaint() const override {
    const std::string own = describe(step_, group_);
    if (!job_.mpi || !members_) return own;
    return concat(own, "; its last call there is ", detail::describe_absent(*job_.mpi, *members_));
  }

 private:
  Job& job_;
  std::string group_;
  Step step_;
  const detail::Members* members_;
  std::optional<Mark> end_;
  std::atomic<bool> left_host_ = false;
};

// Watches what only the host does.
class OnHost {
 public:
  OnHost(Job& job, int id, const std::string& group, Operation operation)
      : flight_(std::make_shared<Flight>(job, group, Step{.operation = operation}, nullptr)) {
    job.watchdog->watch(id, flight_);
  }
  ~OnHost() { flight_->leave_host(); }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

 private:
  std::shared_ptr<Flight> flight_;
};

constexpr int while_starting = -1;  // the watchdog's group of those that do not exist yet

// A new communicator; `make` is NCCL's call, which waits for the other ranks.
template <class Make>
ncclComm_t start_group(Job& job, const std::string& name, const char* call, ncclComm_t parent, Make&& make) {
  const OnHost watched(job, while_starting, name, Operation::start_of_group);
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  check_nccl(make(&comm, &config), call, parent);
  return comm;
}

std::shared_ptr<Job> mpi_job(const MpiSession& session, NcclOptions options) {
  if (options.timeout_seconds <= 0) options.timeout_seconds = session.timeout_seconds();
  auto job = std::make_shared<Job>(detail::choose_gpu(session.local_rank()), options);
  job->mpi = session.job();
  job->rank = session.rank();
  job->size = session.size();
  return job;
}

std::shared_ptr<Job> torchrun_job(const TorchrunPlace& place, NcclOptions options) {
  if (options.timeout_seconds <= 0) options.timeout_seconds = 600;
  auto job = std::make_shared<Job>(detail::choose_gpu(place.local_rank), options);
  job->rendezvous = std::make_unique<Rendezvous>(place, options.timeout_seconds);
  job->rank = place.rank;
  job->size = place.size;
  return job;
}

// All ranks of the job, with the identifier that rank 0 makes and `share` brings to the others.
ncclComm_t start_world(Job& job, function_ref<void(std::span<std::byte>)> share) {
  ncclUniqueId id{};
  if (job.rank == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  share(std::as_writable_bytes(std::span(&id, 1)));
  job.start();
  return start_group(job, "world", "ncclCommInitRankConfig", nullptr,
                     [&](ncclComm_t* comm, ncclConfig_t* config) {
                       return ncclCommInitRankConfig(comm, job.size, id, job.rank, config);
                     });
}

}  // namespace

struct Nccl::State {
  std::shared_ptr<Job> job;
  ncclComm_t comm;
  std::string name;
  int rank = 0, size = 1, slot = 0;
  detail::CommunicationStream stream;
  int id;  // of this group on this rank
  detail::Members members;
  std::int64_t number = 0;
  int exceptions = std::uncaught_exceptions();

  State(std::shared_ptr<Job> job_, ncclComm_t comm_, std::string_view name_)
      : job(std::move(job_)), comm(comm_), name(name_), stream(job->device) {
    check_nccl(ncclCommUserRank(comm, &rank), "ncclCommUserRank", comm);
    check_nccl(ncclCommCount(comm, &size), "ncclCommCount", comm);
    if (job->mpi) slot = job->mpi->take_slot(name);
    id = job->add({comm, name, slot});
    members.own = rank;
    // Its steps on the board go on from those of the slot's groups before this one.
    const std::int64_t steps = job->mpi ? job->mpi->slot(slot).steps.load() : 0;
    const std::vector<std::int64_t> all =
        gather({job->rank, slot, steps}, {.operation = Operation::start_of_group});
    for (std::size_t i = 0; i < all.size(); i += 3) {
      members.ranks.push_back(static_cast<int>(all[i]));
      members.slots.push_back(static_cast<int>(all[i + 1]));
      members.steps.push_back(all[i + 2]);
    }
  }

  ~State() {
    job->remove(id);
    if (std::uncaught_exceptions() > exceptions) {
      ncclCommAbort(comm);  // what the others share is no more
    } else {
      const OnHost watched(*job, id, name, Operation::end_of_group);
      ncclCommDestroy(comm);
    }
    job->watchdog->forget(id);
    if (job->mpi) job->mpi->give_slot(slot);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int world_rank(int r) const { return members.ranks[static_cast<std::size_t>(r)]; }

  // ---- giving work to the stream ----

  // Gives `enqueue` to the group's stream, and watches it from now until its end there.
  template <class Enqueue>
  Mark start(Step step, Enqueue&& enqueue) {
    step.number = ++number;
    const auto flight =
        std::make_shared<Flight>(*job, name, step, members.ranks.empty() ? nullptr : &members);
    std::optional<detail::Entered> entered;
    if (job->mpi) entered.emplace(job->mpi->slot(slot), step.operation, step.elements, step.dtype, step.peer);
    job->watchdog->watch(id, flight);
    try {
      const Mark end = stream.run([&](void* handle) { enqueue(static_cast<cudaStream_t>(handle)); });
      flight->given_to_stream(end);
      flight->leave_host();
      return end;
    } catch (...) {
      flight->leave_host();
      throw;
    }
  }

  template <class Enqueue>
  void run(const Step& step, Enqueue&& enqueue) {
    start(step, enqueue).make_current_stream_wait();
  }

  // Each rank's numbers, as many on each, in rank order; the host waits for them.
  std::vector<std::int64_t> gather(std::vector<std::int64_t> own, const Step& step) {
    const auto count = static_cast<std::int64_t>(own.size());
    const Tensor mine = from_blob(own.data(), {count}, at::kLong).to(job->device, at::kLong),
                 all = mine.new_empty({size * count});
    run(step, [&](cudaStream_t s) {
      check_nccl(ncclAllGather(mine.data_ptr(), all.data_ptr(), own.size(), ncclInt64, comm, s),
                 "ncclAllGather", comm);
    });
    const Tensor here = all.to(c10::Device(at::kCPU), at::kLong);
    const std::int64_t* data = here.const_data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(data, data + size * count);
  }

  // ---- checks before the data move ----

  // Throws where the call is wrong here; where calls are compared, the same on every rank where it is wrong
  // or different on any. `counts` are those that all ranks give alike.
  void check(Operation operation, Problem problem, const Tensor* tensor, std::int64_t argument,
             std::span<const std::int64_t> counts = {}) {
    if (!job->options.compare_calls) {
      if (problem != Problem::none) detail::refuse(operation, name, job->rank, problem);
      return;
    }
    const bool has_tensor = tensor && tensor->defined();
    const std::int64_t dtype = has_tensor ? static_cast<std::int64_t>(tensor->scalar_type()) : -1;
    // Ranks may send unlike numbers of rows, but rows of one size.
    const std::int64_t elements = !has_tensor                            ? 0
                                  : operation != Operation::all_to_all_v ? tensor->numel()
                                  : problem == Problem::none             ? detail::row_elements(*tensor)
                                                                         : 0;
    std::vector<std::int64_t> own{static_cast<std::int64_t>(operation), dtype, elements, argument,
                                  static_cast<std::int64_t>(problem)};
    if (problem == Problem::none) own.insert(own.end(), counts.begin(), counts.end());
    own.resize(static_cast<std::size_t>(5 + 2 * size));
    compare(
        gather(std::move(own),
               {.operation = operation, .elements = elements, .dtype = static_cast<std::int32_t>(dtype)}));
  }

  void compare(const std::vector<std::int64_t>& all) const {
    const auto width = static_cast<std::ptrdiff_t>(5 + 2 * size);
    const auto call = [&](int r) {
      return std::span(all.data() + width * r, static_cast<std::size_t>(width));
    };
    const auto words = [&](int r) {
      const auto c = call(r);
      return detail::describe_call(static_cast<Operation>(c[0]), static_cast<std::int32_t>(c[1]), c[2], c[3]);
    };
    for (int r = 0; r < size; ++r)
      if (const auto problem = static_cast<Problem>(call(r)[4]); problem != Problem::none)
        detail::refuse(static_cast<Operation>(call(r)[0]), name, world_rank(r), problem);
    for (int r = 1; r < size; ++r)
      if (!std::equal(call(r).begin(), call(r).begin() + 4, call(0).begin()))
        throw RunError(detail::disagreement(name, number, world_rank(0), words(0), world_rank(r), words(r)));
    if (static_cast<Operation>(call(0)[0]) == Operation::all_to_all_v) {
      // Of each rank, the rows for each rank, then those from each.
      for (int from = 0; from < size; ++from)
        for (int to = 0; to < size; ++to)
          check_rows(from, call(from)[static_cast<std::size_t>(5 + to)], to,
                     call(to)[static_cast<std::size_t>(5 + size + from)]);
      return;
    }
    const auto counts = [&](int r) { return call(r).subspan(5, static_cast<std::size_t>(size)); };
    for (int r = 1; r < size; ++r)
      if (!std::equal(counts(r).begin(), counts(r).end(), counts(0).begin()))
        throw RunError(
            detail::disagreement_in_counts(name, number, world_rank(0), counts(0), world_rank(r), counts(r)));
  }

  void check_rows(int from, std::int64_t rows, int to, std::int64_t expected) const {
    if (rows != expected)
      throw RunError(detail::misfit(name, world_rank(from), concat(rows, " rows"), world_rank(to),
                                    concat(expected, " rows")));
  }

  static Step step_of(Operation operation, const Tensor& tensor) {
    return {operation, tensor.numel(), static_cast<std::int32_t>(tensor.scalar_type())};
  }

  // ---- reductions, on the stream ----

  void all_reduce_raw(const Tensor& tensor, ncclRedOp_t op, cudaStream_t s) {
    if (tensor.numel() == 0) return;
    check_nccl(ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
                             type_of(tensor.scalar_type()), op, comm, s),
               "ncclAllReduce", comm);
  }

  void all_reduce(Tensor& tensor, ReduceOp op, cudaStream_t s) {
    if (is_narrow_float(tensor)) {
      Tensor wide = tensor.to(at::kFloat);
      all_reduce(wide, op, s);
      tensor.copy_(wide);
      return;
    }
    if (op == ReduceOp::max && at::isFloatingType(tensor.scalar_type())) {
      // NCCL drops NaN from a max, so that where there is one travels beside it.
      const Tensor is_nan = tensor.isnan().to(at::kByte);
      Together both;
      all_reduce_raw(tensor, ncclMax, s);
      all_reduce_raw(is_nan, ncclMax, s);
      both.launch(comm);
      tensor.masked_fill_(is_nan.to(at::kBool), std::numeric_limits<double>::quiet_NaN());
      return;
    }
    all_reduce_raw(tensor, op == ReduceOp::max || tensor.scalar_type() == at::kBool ? ncclMax : ncclSum, s);
    if (op == ReduceOp::avg) divide(tensor, size);
  }

  // elements[r] of every rank's `whole` go to rank r, which reduces them in rank order.
  void reduce_in_order(const Tensor& whole, Tensor& part, const std::vector<std::int64_t>& elements,
                       ReduceOp op, cudaStream_t s) {
    const std::int64_t own = elements[static_cast<std::size_t>(rank)];
    const auto width = static_cast<std::int64_t>(whole.element_size());
    const Tensor shares = part.new_empty({size, own});
    const std::vector<std::int64_t> in(static_cast<std::size_t>(size), own * width);
    scatter(bytes_of(whole), scaled(elements, width), bytes_of(shares), in, s);
    if (own == 0) return;
    const c10::ScalarType dtype = part.scalar_type();
    const c10::ScalarType wide = is_narrow_float(part) ? at::kFloat : dtype == at::kBool ? at::kByte : dtype;
    Tensor sum = shares[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
    for (int r = 1; r < size; ++r) {
      const Tensor share = shares[r].to(wide);
      if (op == ReduceOp::max || dtype == at::kBool)
        sum = sum.maximum(share);
      else
        sum.add_(share);
    }
    if (op == ReduceOp::avg) divide(sum, size);
    part.view({own}).copy_(sum);
  }

  void reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op, cudaStream_t s) {
    if (is_narrow_float(whole)) {
      Tensor sum = part.to(at::kFloat);
      reduce_scatter(whole.to(at::kFloat), sum, op, s);
      part.copy_(sum);
      return;
    }
    const std::int64_t own = part.numel();
    if (op == ReduceOp::max && at::isFloatingType(whole.scalar_type()))  // for NaN, as above
      return reduce_in_order(whole, part, std::vector<std::int64_t>(static_cast<std::size_t>(size), own), op,
                             s);
    if (own == 0) return;
    const bool max = op == ReduceOp::max || whole.scalar_type() == at::kBool;
    check_nccl(ncclReduceScatter(whole.data_ptr(), part.data_ptr(), static_cast<std::size_t>(own),
                                 type_of(whole.scalar_type()), max ? ncclMax : ncclSum, comm, s),
               "ncclReduceScatter", comm);
    if (op == ReduceOp::avg) divide(part, size);
  }

  // ---- moving bytes, on the stream ----

  void send(const std::byte* data, std::int64_t bytes, int to, cudaStream_t s) {
    if (bytes > 0)
      check_nccl(ncclSend(data, static_cast<std::size_t>(bytes), ncclUint8, to, comm, s), "ncclSend", comm);
  }
  void receive(std::byte* data, std::int64_t bytes, int from, cudaStream_t s) {
    if (bytes > 0)
      check_nccl(ncclRecv(data, static_cast<std::size_t>(bytes), ncclUint8, from, comm, s), "ncclRecv", comm);
  }

  // out[r] bytes of `from` to each rank r, in[r] bytes of `into` from it, both in rank order.
  void scatter(const std::byte* from, const std::vector<std::int64_t>& out, std::byte* into,
               const std::vector<std::int64_t>& in, cudaStream_t s) {
    Together all;
    for (int r = 0; r < size; ++r) {
      send(from, out[static_cast<std::size_t>(r)], r, s);
      receive(into, in[static_cast<std::size_t>(r)], r, s);
      from += out[static_cast<std::size_t>(r)];
      into += in[static_cast<std::size_t>(r)];
    }
    all.launch(comm);
  }

  // ---- transfers ----

  // Both ends of every transfer say what they are about to move. Throws, after all have met, what is wrong
  // with the first that does not fit, in the same words on both ranks.
  void compare(std::span<const Transfer> transfers, const Step& step) {
    constexpr std::int64_t width = 3;
    const auto count = static_cast<std::int64_t>(transfers.size());
    std::vector<std::int64_t> own;
    for (const Transfer& transfer : transfers) {
      const Tensor& t = *transfer.tensor;
      own.push_back(static_cast<std::int64_t>(detail::examine(t, job->device)));
      own.push_back(t.defined() ? static_cast<std::int64_t>(t.scalar_type()) : -1);
      own.push_back(t.defined() ? t.numel() : 0);
    }
    const Tensor mine = from_blob(own.data(), {count, width}, at::kLong).to(job->device, at::kLong),
                 theirs = mine.new_zeros({count, width});
    // A receiver answers with its own, so that every pair of ranks exchanges two messages a transfer.
    constexpr std::int64_t bytes = width * static_cast<std::int64_t>(sizeof(std::int64_t));
    for (const bool answers : {false, true})
      run(step, [&](cudaStream_t s) {
        Together all;
        for (std::int64_t i = 0; i < count; ++i) {
          const Transfer& transfer = transfers[static_cast<std::size_t>(i)];
          if ((transfer.way == Transfer::Way::send) != answers)
            send(bytes_of(mine) + i * bytes, bytes, transfer.peer, s);
          else
            receive(bytes_of(theirs) + i * bytes, bytes, transfer.peer, s);
        }
        all.launch(comm);
      });
    const Tensor here = theirs.to(c10::Device(at::kCPU), at::kLong);
    for (std::int64_t i = 0; i < count; ++i)
      check_ends(transfers[static_cast<std::size_t>(i)], own.data() + width * i,
                 here.const_data_ptr<std::int64_t>() + width * i);
  }

  // What both ends of a transfer say: the problem, the dtype, the elements.
  void check_ends(const Transfer& transfer, const std::int64_t* own, const std::int64_t* other) const {
    const bool sends = transfer.way == Transfer::Way::send;
    const int peer = world_rank(transfer.peer), from = sends ? job->rank : peer,
              to = sends ? peer : job->rank;
    const std::int64_t *sender = sends ? own : other, *receiver = sends ? other : own;
    if (sender[0]) detail::refuse(Operation::send, name, from, static_cast<Problem>(sender[0]));
    if (receiver[0]) detail::refuse(Operation::recv, name, to, static_cast<Problem>(receiver[0]));
    const auto words = [](const std::int64_t* end) {
      return detail::describe_elements(end[2], static_cast<c10::ScalarType>(end[1]));
    };
    if (sender[1] != receiver[1] || sender[2] != receiver[2])
      throw RunError(detail::misfit(name, from, words(sender), to, words(receiver)));
  }

  // Those from this rank to itself are compared in any case.
  void check_own(std::span<const Transfer> transfers) const {
    auto receive = transfers.begin();
    const auto is_own = [&](const Transfer& t, Transfer::Way way) { return t.peer == rank && t.way == way; };
    for (const Transfer& send : transfers) {
      if (!is_own(send, Transfer::Way::send)) continue;
      receive = std::find_if(receive, transfers.end(),
                             [&](const Transfer& t) { return is_own(t, Transfer::Way::receive); });
      const Tensor &from = *send.tensor, &to = *receive++->tensor;
      if (from.scalar_type() != to.scalar_type() || from.numel() != to.numel())
        throw RunError(detail::misfit(name, job->rank,
                                      detail::describe_elements(from.numel(), from.scalar_type()), job->rank,
                                      detail::describe_elements(to.numel(), to.scalar_type())));
    }
  }

  void exchange(Operation operation, std::span<const Transfer> transfers) {
    if (const Problem problem = detail::examine_peers(transfers, rank, size); problem != Problem::none)
      detail::refuse(operation, name, job->rank, problem);
    Step step{operation, static_cast<std::int64_t>(transfers.size())};
    if (operation != Operation::exchange && transfers.front().tensor->defined()) {
      step = step_of(operation, *transfers.front().tensor);
      step.peer = world_rank(transfers.front().peer);
    }
    if (job->options.compare_calls) compare(transfers, step);
    for (const Transfer& transfer : transfers)
      if (const Problem problem = detail::examine(*transfer.tensor, job->device); problem != Problem::none)
        detail::refuse(transfer.way == Transfer::Way::send ? Operation::send : Operation::recv, name,
                       job->rank, problem);
    check_own(transfers);
    run(step, [&](cudaStream_t s) {
      Together all;
      for (const Transfer& transfer : transfers) {
        const Tensor& t = *transfer.tensor;
        if (transfer.way == Transfer::Way::send)
          send(bytes_of(t), size_of(t), transfer.peer, s);
        else
          receive(bytes_of(t), size_of(t), transfer.peer, s);
      }
      all.launch(comm);
    });
  }

  template <class Value>
  Value reduce_value(Value value, c10::ScalarType dtype, ReduceOp op) {
    const bool averages_integers = op == ReduceOp::avg && !at::isFloatingType(dtype);
    Tensor t = zeros({1}, dtype).fill_(value).to(job->device, dtype);
    check(Operation::all_reduce_value, averages_integers ? Problem::average : Problem::none, &t,
          static_cast<std::int64_t>(op));
    run(step_of(Operation::all_reduce_value, t), [&](cudaStream_t s) { all_reduce(t, op, s); });
    return t.item<Value>();
  }
};

namespace {

std::int64_t row_bytes(const Tensor& tensor) {
  return detail::row_elements(tensor) * static_cast<std::int64_t>(tensor.element_size());
}

}  // namespace

Nccl::Nccl(std::unique_ptr<State> state) : state_(std::move(state)) {}

Nccl::Nccl(const MpiSession& session, NcclOptions options) {
  const auto job = mpi_job(session, options);
  // Of all ranks, for this once: MPI has no other way to bring them the identifier in bounded time.
  Mpi carrier(session, MpiOptions{.timeout_seconds = job->options.timeout_seconds});
  const ncclComm_t comm = start_world(*job, [&](std::span<std::byte> bytes) {
    Tensor t = from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
    carrier.broadcast(t, 0);
  });
  state_ = std::make_unique<State>(job, comm, "world");
}

Nccl::Nccl(const TorchrunPlace& place, NcclOptions options) {
  const auto job = torchrun_job(place, options);
  const ncclComm_t comm =
      start_world(*job, [&](std::span<std::byte> bytes) { job->rendezvous->broadcast(bytes); });
  state_ = std::make_unique<State>(job, comm, "world");
}

Nccl::Nccl(Nccl&&) noexcept = default;
Nccl& Nccl::operator=(Nccl&&) noexcept = default;
Nccl::~Nccl() = default;

int Nccl::rank() const { return state_->rank; }
int Nccl::size() const { return state_->size; }
int Nccl::world_rank() const { return state_->job->rank; }
int Nccl::device_index() const { return state_->job->device.index(); }
c10::DeviceType Nccl::device_type_for_comm() const { return state_->job->device.type(); }

void Nccl::all_reduce(Tensor& tensor, ReduceOp op) {
  State& s = *state_;
  s.check(Operation::all_reduce, detail::examine_reduction(tensor, op, s.job->device), &tensor,
          static_cast<std::int64_t>(op));
  s.run(State::step_of(Operation::all_reduce, tensor),
        [&](cudaStream_t stream) { s.all_reduce(tensor, op, stream); });
}

void Nccl::reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op) {
  State& s = *state_;
  s.check(Operation::reduce_scatter,
          detail::examine_reduce_scatter(whole, part, op, s.rank, s.size, s.job->device), &whole,
          static_cast<std::int64_t>(op));
  s.run(State::step_of(Operation::reduce_scatter, whole),
        [&](cudaStream_t stream) { s.reduce_scatter(whole, part, op, stream); });
}

void Nccl::reduce_scatter_v(const Tensor& whole, Tensor& part, std::span<const std::int64_t> counts,
                            ReduceOp op) {
  State& s = *state_;
  s.check(Operation::reduce_scatter_v,
          detail::examine_reduce_scatter_v(whole, part, counts, op, s.rank, s.size, s.job->device), &whole,
          static_cast<std::int64_t>(op), counts);
  s.run(State::step_of(Operation::reduce_scatter_v, whole), [&](cudaStream_t stream) {
    s.reduce_in_order(whole, part, scaled(counts, detail::row_elements(whole)), op, stream);
  });
}

void Nccl::broadcast(Tensor& tensor, int root) {
  State& s = *state_;
  const bool known = root >= 0 && root < s.size;
  s.check(Operation::broadcast, known ? detail::examine(tensor, s.job->device) : Problem::root, &tensor,
          root);
  s.run(State::step_of(Operation::broadcast, tensor), [&](cudaStream_t stream) {
    if (tensor.numel() > 0)
      check_nccl(ncclBroadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), ncclUint8, root, s.comm,
                               stream),
                 "ncclBroadcast", s.comm);
  });
}

void Nccl::all_gather(const Tensor& part, Tensor& gathered) {
  State& s = *state_;
  s.check(Operation::all_gather, detail::examine_all_gather(part, gathered, s.size, s.job->device), &part, 0);
  s.run(State::step_of(Operation::all_gather, part), [&](cudaStream_t stream) {
    if (part.numel() > 0)
      check_nccl(
          ncclAllGather(part.data_ptr(), gathered.data_ptr(), part.nbytes(), ncclUint8, s.comm, stream),
          "ncclAllGather", s.comm);
  });
}

void Nccl::all_gather_v(const Tensor& part, Tensor& gathered, std::span<const std::int64_t> counts) {
  State& s = *state_;
  s.check(Operation::all_gather_v,
          detail::examine_all_gather_v(part, gathered, counts, s.rank, s.size, s.job->device), &gathered, 0,
          counts);
  s.run(State::step_of(Operation::all_gather_v, gathered), [&](cudaStream_t stream) {
    const std::vector<std::int64_t> bytes = scaled(counts, row_bytes(gathered));
    Together all;
    std::byte* into = bytes_of(gathered);
    for (int r = 0; r < s.size; ++r) {
      const std::int64_t length = bytes[static_cast<std::size_t>(r)];
      // To itself as well, unless its part lies in its place.
      if (r != s.rank || into != bytes_of(part)) {
        s.send(bytes_of(part), size_of(part), r, stream);
        s.receive(into, length, r, stream);
      }
      into += length;
    }
    all.launch(s.comm);
  });
}

void Nccl::all_to_all(const Tensor& sent, Tensor& received) {
  State& s = *state_;
  s.check(Operation::all_to_all, detail::examine_all_to_all(sent, received, s.size, s.job->device), &sent, 0);
  s.run(State::step_of(Operation::all_to_all, sent), [&](cudaStream_t stream) {
    const std::vector<std::int64_t> parts(static_cast<std::size_t>(s.size), size_of(sent) / s.size);
    s.scatter(bytes_of(sent), parts, bytes_of(received), parts, stream);
  });
}

void Nccl::all_to_all_v(const Tensor& sent, std::span<const std::int64_t> send_counts, Tensor& received,
                        std::span<const std::int64_t> receive_counts) {
  State& s = *state_;
  std::vector<std::int64_t> counts(send_counts.begin(), send_counts.end());
  counts.insert(counts.end(), receive_counts.begin(), receive_counts.end());
  s.check(Operation::all_to_all_v,
          detail::examine_all_to_all_v(sent, send_counts, received, receive_counts, s.size, s.job->device),
          &sent, 0, counts);
  const auto own = static_cast<std::size_t>(s.rank);
  s.check_rows(s.rank, send_counts[own], s.rank, receive_counts[own]);
  s.run(State::step_of(Operation::all_to_all_v, sent), [&](cudaStream_t stream) {
    const std::int64_t row = row_bytes(sent);
    s.scatter(bytes_of(sent), scaled(send_counts, row), bytes_of(received), scaled(receive_counts, row),
              stream);
  });
}

void Nccl::send(const Tensor& tensor, int to) {
  const Transfer transfers[] = {Transfer::send(tensor, to)};
  state_->exchange(Operation::send, transfers);
}

void Nccl::recv(Tensor& tensor, int from) {
  const Transfer transfers[] = {Transfer::receive(tensor, from)};
  state_->exchange(Operation::recv, transfers);
}

void Nccl::exchange(std::span<const Transfer> transfers) { state_->exchange(Operation::exchange, transfers); }

void Nccl::barrier() {
  State& s = *state_;
  s.check(Operation::barrier, Problem::none, nullptr, 0);
  const Tensor token = zeros({1}, at::kInt).to(s.job->device, at::kInt);
  s.start({.operation = Operation::barrier}, [&](cudaStream_t stream) {
     s.all_reduce_raw(token, ncclSum, stream);
   }).make_host_wait();
}

std::int64_t Nccl::all_reduce_value(std::int64_t value, ReduceOp op) {
  return state_->reduce_value(value, at::kLong, op);
}

double Nccl::all_reduce_value(double value, ReduceOp op) {
  return state_->reduce_value(value, at::kDouble, op);
}

struct Nccl::Pending::Reduction {
  Tensor tensor;
  Mark end;
};

Nccl::Pending::Pending(std::unique_ptr<Reduction> reduction) : reduction_(std::move(reduction)) {}
Nccl::Pending::Pending(Pending&&) noexcept = default;
Nccl::Pending& Nccl::Pending::operator=(Pending&& other) noexcept {
  wait();
  reduction_ = std::move(other.reduction_);
  return *this;
}
Nccl::Pending::~Pending() { wait(); }

void Nccl::Pending::wait() {
  if (reduction_) reduction_->end.make_current_stream_wait();
  reduction_.reset();
}

Nccl::Pending Nccl::start_all_reduce(Tensor& tensor, ReduceOp op) {
  State& s = *state_;
  s.check(Operation::all_reduce, detail::examine_reduction(tensor, op, s.job->device), &tensor,
          static_cast<std::int64_t>(op));
  Mark end = s.start(State::step_of(Operation::all_reduce, tensor),
                     [&](cudaStream_t stream) { s.all_reduce(tensor, op, stream); });
  return Pending(std::make_unique<Pending::Reduction>(Pending::Reduction{tensor, std::move(end)}));
}

Nccl Nccl::split(int color, int key, std::string_view name) {
  State& s = *state_;
  s.check(Operation::split, color >= 0 ? Problem::none : Problem::color, nullptr, 0);
  const std::string group(name);
  const ncclComm_t comm =
      start_group(*s.job, group, "ncclCommSplit", s.comm, [&](ncclComm_t* made, ncclConfig_t* config) {
        return ncclCommSplit(s.comm, color, key, made, config);
      });
  return Nccl(std::make_unique<State>(s.job, comm, group));
}

}  // namespace mgfl::parallel
