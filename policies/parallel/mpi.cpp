#include "policies/parallel/mpi.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/mpi_job.hpp"
#include "policies/parallel/shared_stages.hpp"

namespace mgfl::parallel {

namespace {

using detail::bytes_of;
using detail::Operation;
using detail::Problem;
using detail::scaled;

// What every rank tells all others at the start of an operation; small tensors travel along.
struct Call {
  static constexpr std::int64_t max_payload = 224;
  std::int32_t operation = 0;
  std::int32_t dtype = -1;
  std::int64_t elements = 0;
  std::int64_t argument = 0;  // reduction or root
  std::int32_t problem = 0;
  std::int32_t unused = 0;
  std::byte payload[max_payload] = {};
};
static_assert(sizeof(Call) == 256 && std::is_trivially_copyable_v<Call>);

std::string describe(const Call& call) {
  return detail::describe_call(static_cast<Operation>(call.operation), call.dtype, call.elements,
                               call.argument);
}

std::string describe_size(const Call& call) {
  return detail::describe_elements(call.elements, static_cast<c10::ScalarType>(call.dtype));
}

// Tags of messages: of collectives, of the two ends of a transfer, and, by turns, of its contents.
constexpr int collective_tag = 0, sender_tag = 1, receiver_tag = 2, first_content_tag = 3,
              content_tags = 16384;

}  // namespace

struct Mpi::State {
  std::shared_ptr<detail::MpiJob> job;
  MpiOptions options;
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  detail::Members members;
  detail::SharedStages stages;
  std::string name;
  int exceptions = std::uncaught_exceptions();

  std::vector<Call> calls;                   // of each rank, for the operation that runs
  std::vector<std::int64_t> sent, received;  // transfers begun so far, to and from each rank
  std::vector<std::byte> scratch;
  std::vector<MPI_Request> requests;
  std::vector<const std::byte*> parts;

  State(std::shared_ptr<detail::MpiJob> job_, MpiOptions options_, MPI_Comm comm_, std::string_view name_)
      : job(std::move(job_)), options(options_), comm(comm_), name(name_) {
    detail::check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    calls.resize(static_cast<std::size_t>(size));
    parts.resize(static_cast<std::size_t>(size));
    const int own_slot = job->take_slot(name);
    const std::array<std::int64_t, 3> own{job->rank(), own_slot, job->slot(own_slot).steps.load()};
    std::vector<std::array<std::int64_t, 3>> all(static_cast<std::size_t>(size));
    MPI_Request request;
    detail::check_mpi(MPI_Iallgather(own.data(), 3, MPI_INT64_T, all.data(), 3, MPI_INT64_T, comm, &request),
                      "MPI_Iallgather");
    if (!detail::wait_all(&request, 1, options.timeout_seconds, job->slot(0)))
      job->end(2, concat("mgfl: rank ", job->rank(), " waited ", options.timeout_seconds,
                         " s for the other ranks of group '", name, "', which did not all start it."));
    members.own = rank;
    // The last slot may belong to several groups at once, whose steps would mix.
    bool share = size > 1;
    std::vector<std::byte*> all_stages;
    for (const auto& [world_rank, slot, steps] : all) {
      members.ranks.push_back(static_cast<int>(world_rank));
      members.slots.push_back(static_cast<int>(slot));
      members.steps.push_back(steps);
      share = share && job->row(members.ranks.back()) && slot + 1 < detail::Row::max_slots;
      if (share) all_stages.push_back(job->stage(members.ranks.back()));
    }
    if (share) stages = detail::SharedStages(std::move(all_stages), options.stage_bytes, rank);
    sent.resize(static_cast<std::size_t>(size));
    received.resize(static_cast<std::size_t>(size));
  }

  ~State() {
    job->give_slot(members.slots[static_cast<std::size_t>(rank)]);
    // A collective call must not be made on the way out of a failure, which the other ranks do not share.
    if (!job->closed() && std::uncaught_exceptions() <= exceptions) MPI_Comm_free(&comm);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  detail::Slot& slot() { return job->slot(members.slots[static_cast<std::size_t>(rank)]); }
  int world_rank(int r) const { return members.ranks[static_cast<std::size_t>(r)]; }

  // Ends the job for a wait in vain, which `what` describes.
  [[noreturn]] void end_for(const std::string& what) {
    job->end(2,
             concat("mgfl: rank ", job->rank(), " waited ", options.timeout_seconds, " s in ", what,
                    "; all ranks end. See that rank's own output; raise the time-out if it was only slow."));
  }

  // Waits in a collective until `done`.
  void wait_until(function_ref<bool()> done) {
    bool arrived = false;
    ending_on_error([&] { arrived = detail::wait_until(done, options.timeout_seconds, slot()); });
    if (!arrived) end_for(detail::describe_absent(*job, members));
  }

  bool all_done(std::vector<MPI_Request>& some) {
    int done = 0;
    detail::check_mpi(MPI_Testall(static_cast<int>(some.size()), some.data(), &done, MPI_STATUSES_IGNORE),
                      "MPI_Testall");
    return done != 0;
  }

  // Waits for `requests`, and clears them.
  void wait() {
    wait_until([&] { return all_done(requests); });
    requests.clear();
  }

  // Returns once all ranks have called it as often; what they wrote to shared memory before is visible then.
  void meet_in_memory() {
    const std::int64_t step = slot().steps.fetch_add(1, std::memory_order_release) + 1 -
                              members.steps[static_cast<std::size_t>(rank)];
    int next = 0;
    wait_until([&] {
      for (; next < size; ++next) {
        const auto i = static_cast<std::size_t>(next);
        const detail::Slot& other = job->row(members.ranks[i])->slots[members.slots[i]];
        if (other.steps.load(std::memory_order_acquire) - members.steps[i] < step) {
          // Messages that other ranks wait for may need this rank's MPI to move on.
          int arrived = 0;
          MPI_Iprobe(MPI_ANY_SOURCE, collective_tag, comm, &arrived, MPI_STATUS_IGNORE);
          return false;
        }
      }
      return true;
    });
  }

  // Messages may be under way into memory that an exception would free, so an error of MPI ends the job where
  // it is seen.
  template <class F>
  void ending_on_error(F&& calls_mpi) {
    try {
      calls_mpi();
    } catch (const std::exception& error) {
      job->end(2, concat("mgfl: rank ", job->rank(), ": ", error.what(), " in group '", name, "'."));
    }
  }

  void fail_on_transport(int status, const char* call) {
    ending_on_error([&] { detail::check_mpi(status, call); });
  }

  void send(const std::byte* data, std::int64_t bytes, int to) {
    send(data, bytes, to, collective_tag, requests);
  }
  void receive(std::byte* data, std::int64_t bytes, int from) {
    receive(data, bytes, from, collective_tag, requests);
  }

  void send(const std::byte* data, std::int64_t bytes, int to, int tag, std::vector<MPI_Request>& under_way) {
    for (std::int64_t at = 0; at < bytes; at += options.message_bytes) {
      const int count = static_cast<int>(std::min(options.message_bytes, bytes - at));
      fail_on_transport(MPI_Isend(data + at, count, MPI_BYTE, to, tag, comm, &under_way.emplace_back()),
                        "MPI_Isend");
    }
  }

  void receive(std::byte* data, std::int64_t bytes, int from, int tag, std::vector<MPI_Request>& under_way) {
    for (std::int64_t at = 0; at < bytes; at += options.message_bytes) {
      const int count = static_cast<int>(std::min(options.message_bytes, bytes - at));
      fail_on_transport(MPI_Irecv(data + at, count, MPI_BYTE, from, tag, comm, &under_way.emplace_back()),
                        "MPI_Irecv");
    }
  }

  // Tells all ranks what this one calls and learns what they call; no rank leaves before all have come.
  // Throws the same sentence on every rank if the calls differ.
  void meet(const Call& own) {
    fail_on_transport(MPI_Iallgather(&own, sizeof own, MPI_BYTE, calls.data(), sizeof own, MPI_BYTE, comm,
                                     &requests.emplace_back()),
                      "MPI_Iallgather");
    wait();
    const Call& first = calls.front();
    for (int r = 0; r < size; ++r) {
      const Call& call = calls[static_cast<std::size_t>(r)];
      if (call.problem != 0)
        detail::refuse(static_cast<Operation>(call.operation), name, world_rank(r),
                       static_cast<Problem>(call.problem));
    }
    for (int r = 1; r < size; ++r) {
      const Call& call = calls[static_cast<std::size_t>(r)];
      if (call.operation == first.operation && call.dtype == first.dtype && call.elements == first.elements &&
          call.argument == first.argument)
        continue;
      throw RunError(detail::disagreement(name, slot().number.load(), world_rank(0), describe(first),
                                          world_rank(r), describe(call)));
    }
  }

  // Meets the others; every rank's numbers, as many on each, in rank order.
  std::vector<std::int64_t> meet_with(Call own,
                                      std::initializer_list<std::span<const std::int64_t>> numbers) {
    std::vector<std::int64_t> mine;
    for (const auto some : numbers) mine.insert(mine.end(), some.begin(), some.end());
    const auto bytes = static_cast<std::int64_t>(mine.size() * sizeof(std::int64_t));
    const bool in_calls = bytes <= Call::max_payload;
    if (in_calls && own.problem == 0) std::memcpy(own.payload, mine.data(), static_cast<std::size_t>(bytes));
    meet(own);
    const auto count = static_cast<std::ptrdiff_t>(mine.size());
    std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(size));
    for (int r = 0; in_calls && r < size; ++r)
      std::memcpy(all.data() + count * r, calls[static_cast<std::size_t>(r)].payload,
                  static_cast<std::size_t>(bytes));
    if (!in_calls) {
      std::copy(mine.begin(), mine.end(), all.begin() + count * rank);
      gather(reinterpret_cast<std::byte*>(all.data()), equal_parts(bytes));
    }
    return all;
  }

  // Meets the others for an operation in which all ranks give the same counts, one for each of them.
  void meet_with_same(const Call& own, std::span<const std::int64_t> counts) {
    const std::vector<std::int64_t> all = meet_with(own, {counts});
    for (int r = 1; r < size; ++r) {
      const std::span<const std::int64_t> theirs(all.data() + size * r, static_cast<std::size_t>(size)),
          first(all.data(), static_cast<std::size_t>(size));
      if (!std::equal(theirs.begin(), theirs.end(), first.begin()))
        throw RunError(detail::disagreement_in_counts(name, slot().number.load(), world_rank(0), first,
                                                      world_rank(r), theirs));
    }
  }

  Call call(Operation operation, Problem problem, const Tensor& tensor, std::int64_t argument) const {
    Call own;
    own.operation = static_cast<std::int32_t>(operation);
    own.problem = static_cast<std::int32_t>(problem);
    own.argument = argument;
    if (tensor.defined()) {
      own.dtype = static_cast<std::int32_t>(tensor.scalar_type());
      own.elements = tensor.numel();
    }
    if (problem == Problem::none && tensor.nbytes() > 0 &&
        tensor.nbytes() <= static_cast<std::size_t>(Call::max_payload))
      std::memcpy(own.payload, tensor.const_data_ptr(), tensor.nbytes());
    return own;
  }

  std::vector<std::int64_t> equal_parts(std::int64_t part) const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(size), part);
  }

  std::byte* scratch_of(std::int64_t bytes) {
    if (static_cast<std::int64_t>(scratch.size()) < bytes) scratch.resize(static_cast<std::size_t>(bytes));
    return scratch.data();
  }

  // bytes[r] from each rank r, in rank order; the own ones are in place.
  void gather(std::byte* all, const std::vector<std::int64_t>& bytes) {
    if (stages.usable()) return stages.gather(all, bytes, [&] { meet_in_memory(); });
    const bool equal = std::equal(bytes.begin() + 1, bytes.end(), bytes.begin());
    if (equal && bytes.front() * size <= options.gather_bytes) {
      fail_on_transport(
          MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, static_cast<int>(bytes.front()), MPI_BYTE,
                         comm, &requests.emplace_back()),
          "MPI_Iallgather");
      return wait();
    }
    std::vector<std::byte*> places;
    for (std::int64_t offset = 0; const std::int64_t length : bytes) {
      places.push_back(all + offset);
      offset += length;
    }
    for (int step = 1; step < size; ++step) {
      const int from = (rank - step + size) % size, to = (rank + step) % size;
      receive(places[static_cast<std::size_t>(from)], bytes[static_cast<std::size_t>(from)], from);
      send(places[static_cast<std::size_t>(rank)], bytes[static_cast<std::size_t>(rank)], to);
    }
    wait();
  }

  // gather of a part that lies elsewhere or in its place.
  void gather(const Tensor& part, const Tensor& gathered, const std::vector<std::int64_t>& bytes) {
    std::byte* own = std::accumulate(bytes.begin(), bytes.begin() + rank, bytes_of(gathered));
    if (part.nbytes() > 0 && own != bytes_of(part)) std::memmove(own, bytes_of(part), part.nbytes());
    gather(bytes_of(gathered), bytes);
  }

  // out_bytes[r] of `out` to each rank r, in_bytes[r] of `in` from it, both in rank order; `most` of them at
  // once between any two ranks.
  void scatter(const std::byte* out, const std::vector<std::int64_t>& out_bytes, std::byte* in,
               const std::vector<std::int64_t>& in_bytes, std::int64_t most) {
    std::vector<const std::byte*> outgoing;
    std::vector<std::byte*> incoming;
    for (int r = 0; r < size; ++r) {
      outgoing.push_back(out);
      incoming.push_back(in);
      out += out_bytes[static_cast<std::size_t>(r)];
      in += in_bytes[static_cast<std::size_t>(r)];
    }
    const auto own = static_cast<std::size_t>(rank);
    if (in_bytes[own] > 0) std::memcpy(incoming[own], outgoing[own], static_cast<std::size_t>(in_bytes[own]));
    if (stages.usable())
      return stages.scatter(outgoing.front(), out_bytes, incoming.front(), in_bytes, most,
                            [&] { meet_in_memory(); });
    for (int step = 1; step < size; ++step) {
      const auto from = static_cast<std::size_t>((rank - step + size) % size),
                 to = static_cast<std::size_t>((rank + step) % size);
      receive(incoming[from], in_bytes[from], static_cast<int>(from));
      send(outgoing[to], out_bytes[to], static_cast<int>(to));
    }
    wait();
  }

  // Reduces in place what lies in the calls of all ranks, or is gathered from them.
  void reduce_small(std::byte* data, std::int64_t elements, std::int64_t element_bytes, c10::ScalarType dtype,
                    ReduceOp op) {
    const std::int64_t bytes = elements * element_bytes;
    const bool in_calls = bytes <= Call::max_payload;
    if (!in_calls) {
      std::memcpy(scratch_of(bytes * size) + bytes * rank, data, static_cast<std::size_t>(bytes));
      gather(scratch.data(), equal_parts(bytes));
    }
    for (int r = 0; r < size; ++r)
      parts[static_cast<std::size_t>(r)] =
          in_calls ? calls[static_cast<std::size_t>(r)].payload : scratch.data() + bytes * r;
    detail::reduce_in_order(dtype, op, parts.data(), size, elements, data);
  }

  // Each rank sends the segments that others reduce, and later its own result to all: (size - 1) / size of
  // the tensor twice, as a ring would, but each element is summed in rank order wherever it lies, which a
  // ring cannot offer.
  void reduce_large(std::byte* data, std::int64_t elements, std::int64_t element_bytes, c10::ScalarType dtype,
                    ReduceOp op) {
    const std::int64_t segment = std::max<std::int64_t>(1, options.segment_bytes / element_bytes);
    std::byte* incoming = scratch_of(segment * element_bytes * size);
    const auto scatter = [&](const detail::Slab& slab) {
      for (int step = 1; step < size; ++step) {
        const int from = (rank - step + size) % size, to = (rank + step) % size;
        receive(incoming + segment * element_bytes * from, slab.length(rank) * element_bytes, from);
        send(data + slab.first(to) * element_bytes, slab.length(to) * element_bytes, to);
      }
    };
    detail::Slab slab = detail::slab_at(0, elements, segment, size);
    scatter(slab);
    wait();
    while (slab.begin < elements) {
      std::byte* own = data + slab.first(rank) * element_bytes;
      for (int r = 0; r < size; ++r)
        parts[static_cast<std::size_t>(r)] = r == rank ? own : incoming + segment * element_bytes * r;
      detail::reduce_in_order(dtype, op, parts.data(), size, slab.length(rank), own);
      // Results of this slab and segments of the next travel together.
      for (int step = 1; step < size; ++step) {
        const int from = (rank - step + size) % size, to = (rank + step) % size;
        receive(data + slab.first(from) * element_bytes, slab.length(from) * element_bytes, from);
        send(own, slab.length(rank) * element_bytes, to);
      }
      slab = detail::slab_at(slab.end, elements, segment, size);
      if (slab.begin < elements) scatter(slab);
      wait();
    }
  }

  // `part` gets elements[rank] of the reduction of every rank's `whole`, of which rank r has elements[r].
  void reduce_scatter(const Tensor& whole, const Tensor& part, const std::vector<std::int64_t>& elements,
                      ReduceOp op) {
    const c10::ScalarType dtype = whole.scalar_type();
    if (stages.usable())
      return stages.reduce_scatter(bytes_of(whole), elements, bytes_of(part), dtype, op,
                                   [&] { meet_in_memory(); });
    const auto width = static_cast<std::int64_t>(whole.element_size());
    const std::int64_t most = *std::max_element(elements.begin(), elements.end()),
                       segment = std::min(most, std::max<std::int64_t>(1, options.segment_bytes / width));
    std::vector<std::byte*> places;
    for (std::int64_t offset = 0; const std::int64_t count : elements) {
      places.push_back(bytes_of(whole) + offset * width);
      offset += count;
    }
    std::byte* incoming = scratch_of(segment * width * size);
    for (std::int64_t begin = 0; begin < most; begin += segment) {
      const auto length = [&](int r) {
        return std::clamp<std::int64_t>(elements[static_cast<std::size_t>(r)] - begin, 0, segment);
      };
      const std::int64_t own = length(rank);
      for (int step = 1; step < size; ++step) {
        const int from = (rank - step + size) % size, to = (rank + step) % size;
        receive(incoming + segment * width * from, own * width, from);
        send(places[static_cast<std::size_t>(to)] + begin * width, length(to) * width, to);
      }
      wait();
      for (int r = 0; r < size; ++r)
        parts[static_cast<std::size_t>(r)] =
            r == rank ? places[static_cast<std::size_t>(r)] + begin * width : incoming + segment * width * r;
      detail::reduce_in_order(dtype, op, parts.data(), size, own, bytes_of(part) + begin * width);
    }
  }

  // One transfer under way: both ends say what they are about to move; once they agree, the contents follow.
  struct Meeting {
    const Transfer* transfer = nullptr;
    Call own, other;
    MPI_Request answer = MPI_REQUEST_NULL;
    bool answered = false, done = false;
    std::vector<MPI_Request> under_way;
    bool sends() const { return transfer->way == Transfer::Way::send; }
  };

  void announce(Meeting& meeting) {
    const Transfer& transfer = *meeting.transfer;
    const bool sends = meeting.sends();
    const auto peer = static_cast<std::size_t>(transfer.peer);
    meeting.own = call(sends ? Operation::send : Operation::recv, detail::examine(*transfer.tensor),
                       *transfer.tensor, (sends ? sent : received)[peer]++);
    fail_on_transport(MPI_Irecv(&meeting.other, sizeof(Call), MPI_BYTE, transfer.peer,
                                sends ? receiver_tag : sender_tag, comm, &meeting.answer),
                      "MPI_Irecv");
    fail_on_transport(MPI_Isend(&meeting.own, sizeof(Call), MPI_BYTE, transfer.peer,
                                sends ? sender_tag : receiver_tag, comm, &meeting.under_way.emplace_back()),
                      "MPI_Isend");
  }

  // What is wrong between the two ends, the same words on both; nothing where they agree.
  std::string fault_of(const Meeting& meeting) const {
    const bool sends = meeting.sends();
    const Call &sender = sends ? meeting.own : meeting.other, &receiver = sends ? meeting.other : meeting.own;
    const int peer = world_rank(meeting.transfer->peer);
    const int from = sends ? job->rank() : peer, to = sends ? peer : job->rank();
    if (sender.problem != 0)
      return detail::refusal(Operation::send, name, from, static_cast<Problem>(sender.problem));
    if (receiver.problem != 0)
      return detail::refusal(Operation::recv, name, to, static_cast<Problem>(receiver.problem));
    if (sender.dtype != receiver.dtype || sender.elements != receiver.elements)
      return detail::misfit(name, from, describe_size(sender), to, describe_size(receiver));
    return {};
  }

  void move_contents(Meeting& meeting) {
    const Tensor& tensor = *meeting.transfer->tensor;
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    if (bytes <= Call::max_payload) {
      if (!meeting.sends() && bytes > 0)
        std::memcpy(bytes_of(tensor), meeting.other.payload, static_cast<std::size_t>(bytes));
      return;
    }
    // A tag of its own, since the answers of one peer may be seen in another order than they came.
    const int tag = first_content_tag + static_cast<int>(meeting.own.argument % content_tags);
    if (meeting.sends())
      send(bytes_of(tensor), bytes, meeting.transfer->peer, tag, meeting.under_way);
    else
      receive(bytes_of(tensor), bytes, meeting.transfer->peer, tag, meeting.under_way);
  }

  void exchange(Operation operation, std::span<const Transfer> transfers) {
    if (const Problem problem = detail::examine_peers(transfers, rank, size); problem != Problem::none)
      detail::refuse(operation, name, job->rank(), problem);
    std::vector<Meeting> meetings(transfers.size());
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      meetings[i].transfer = &transfers[i];
      announce(meetings[i]);
    }
    const bool one = operation != Operation::exchange;
    const detail::Entered entered(
        slot(), operation, one ? meetings.front().own.elements : static_cast<std::int64_t>(transfers.size()),
        one ? meetings.front().own.dtype : -1, one ? world_rank(transfers.front().peer) : -1);
    std::string fault;
    const auto progress = [&](Meeting& meeting) {
      if (!meeting.answered) {
        int arrived = 0;
        detail::check_mpi(MPI_Test(&meeting.answer, &arrived, MPI_STATUS_IGNORE), "MPI_Test");
        if (!arrived) return false;
        meeting.answered = true;
        const std::string found = fault_of(meeting);
        if (found.empty()) move_contents(meeting);
        if (fault.empty()) fault = found;
      }
      return all_done(meeting.under_way);
    };
    bool arrived = false;
    ending_on_error([&] {
      arrived = detail::wait_until(
          [&] {
            bool all = true;
            for (Meeting& meeting : meetings) {
              meeting.done = meeting.done || progress(meeting);
              all = all && meeting.done;
            }
            return all;
          },
          options.timeout_seconds, slot());
    });
    if (!arrived) {
      // A misfit explains why ranks did not come better than that they did not.
      if (!fault.empty()) job->end(2, concat("mgfl: ", fault));
      std::vector<int> peers;
      for (const Meeting& meeting : meetings)
        if (!meeting.done && std::find(peers.begin(), peers.end(), meeting.transfer->peer) == peers.end())
          peers.push_back(meeting.transfer->peer);
      end_for(detail::describe_peers(*job, members, peers));
    }
    if (!fault.empty()) throw RunError(fault);
  }

  template <class Value>
  Value reduce_value(Value value, c10::ScalarType dtype, ReduceOp op) {
    Call own;
    own.operation = static_cast<std::int32_t>(Operation::all_reduce_value);
    own.dtype = static_cast<std::int32_t>(dtype);
    own.elements = 1;
    own.argument = static_cast<std::int64_t>(op);
    if (op == ReduceOp::avg && std::is_integral_v<Value>)
      own.problem = static_cast<std::int32_t>(Problem::average);
    std::memcpy(own.payload, &value, sizeof value);
    const detail::Entered entered(slot(), Operation::all_reduce_value, 1, own.dtype);
    meet(own);
    reduce_small(reinterpret_cast<std::byte*>(&value), 1, sizeof value, dtype, op);
    return value;
  }
};

namespace {

// The world communicator's copy; every wait for other ranks has a deadline, this one too.
MPI_Comm copy_world(detail::MpiJob& job, double timeout_seconds) {
  const detail::Entered entered(job.slot(0), Operation::start_of_group, 0, -1);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request;
  detail::check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request), "MPI_Comm_idup");
  if (!detail::wait_all(&request, 1, timeout_seconds, job.slot(0)))
    job.end(2, concat("mgfl: rank ", job.rank(), " waited ", timeout_seconds, " s in ",
                      detail::describe_absent(job, job.all_ranks()), "; all ranks end."));
  return comm;
}

MpiOptions completed(MpiOptions options, const detail::MpiJob& job) {
  if (options.timeout_seconds <= 0) options.timeout_seconds = job.timeout_seconds;
  check_user(options.segment_bytes > 0 && options.message_bytes > 0 && options.message_bytes <= 1 << 30,
             "MpiOptions: segment_bytes ", options.segment_bytes, " and message_bytes ",
             options.message_bytes, " must be positive, the latter at most 1 GiB.");
  // Together they are one message, whose length an int holds.
  check_user(options.gather_bytes >= 0 && options.gather_bytes <= 1 << 30, "MpiOptions: gather_bytes ",
             options.gather_bytes, " must be 0 to 1 GiB.");
  check_user(options.stage_bytes >= 0 && options.stage_bytes <= detail::stage_bytes,
             "MpiOptions: stage_bytes ", options.stage_bytes, " must be 0 to ", detail::stage_bytes, ".");
  return options;
}

}  // namespace

Mpi::Mpi(std::unique_ptr<State> state) : state_(std::move(state)) {}

Mpi::Mpi(const MpiSession& session, MpiOptions options) {
  const MpiOptions complete = completed(options, *session.job());
  state_ = std::make_unique<State>(session.job(), complete,
                                   copy_world(*session.job(), complete.timeout_seconds), "world");
}

Mpi::Mpi(Mpi&&) noexcept = default;
Mpi& Mpi::operator=(Mpi&&) noexcept = default;
Mpi::~Mpi() = default;

int Mpi::rank() const { return state_->rank; }
int Mpi::size() const { return state_->size; }
c10::DeviceType Mpi::device_type_for_comm() const { return at::kCPU; }
int Mpi::world_rank() const { return state_->job->rank(); }

void Mpi::all_reduce(Tensor& tensor, ReduceOp op) {
  State& s = *state_;
  const Call own = s.call(Operation::all_reduce, detail::examine_reduction(tensor, op), tensor,
                          static_cast<std::int64_t>(op));
  const detail::Entered entered(s.slot(), Operation::all_reduce, own.elements, own.dtype);
  s.meet(own);
  if (own.elements == 0) return;
  const c10::ScalarType dtype = tensor.scalar_type();
  const auto width = static_cast<std::int64_t>(tensor.element_size()), bytes = own.elements * width;
  if (bytes <= Call::max_payload || (!s.stages.usable() && bytes * s.size <= s.options.gather_bytes))
    s.reduce_small(bytes_of(tensor), own.elements, width, dtype, op);
  else if (s.stages.usable())
    s.stages.all_reduce(bytes_of(tensor), own.elements, dtype, op, [&] { s.meet_in_memory(); });
  else
    s.reduce_large(bytes_of(tensor), own.elements, width, dtype, op);
}

void Mpi::reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op) {
  State& s = *state_;
  const Call own =
      s.call(Operation::reduce_scatter, detail::examine_reduce_scatter(whole, part, op, s.rank, s.size),
             whole, static_cast<std::int64_t>(op));
  const detail::Entered entered(s.slot(), Operation::reduce_scatter, own.elements, own.dtype);
  s.meet(own);
  s.reduce_scatter(whole, part, s.equal_parts(part.numel()), op);
}

void Mpi::reduce_scatter_v(const Tensor& whole, Tensor& part, std::span<const std::int64_t> counts,
                           ReduceOp op) {
  State& s = *state_;
  const Call own = s.call(Operation::reduce_scatter_v,
                          detail::examine_reduce_scatter_v(whole, part, counts, op, s.rank, s.size), whole,
                          static_cast<std::int64_t>(op));
  const detail::Entered entered(s.slot(), Operation::reduce_scatter_v, own.elements, own.dtype);
  s.meet_with_same(own, counts);
  s.reduce_scatter(whole, part, scaled(counts, detail::row_elements(whole)), op);
}

void Mpi::broadcast(Tensor& tensor, int root) {
  State& s = *state_;
  const bool known = root >= 0 && root < s.size;
  const Call own =
      s.call(Operation::broadcast, known ? detail::examine(tensor) : Problem::root, tensor, root);
  const detail::Entered entered(s.slot(), Operation::broadcast, own.elements, own.dtype);
  s.meet(own);
  const std::int64_t bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (bytes == 0) return;
  if (bytes <= Call::max_payload) {
    std::memcpy(bytes_of(tensor), s.calls[static_cast<std::size_t>(root)].payload,
                static_cast<std::size_t>(bytes));
    return;
  }
  if (s.stages.usable()) {
    std::vector<std::int64_t> from(static_cast<std::size_t>(s.size));
    from[static_cast<std::size_t>(root)] = bytes;
    // All of `gathered` is the root's; the places of the others are empty.
    return s.gather(bytes_of(tensor), from);
  }
  for (std::int64_t at = 0; at < bytes; at += s.options.message_bytes) {
    const int count = static_cast<int>(std::min(s.options.message_bytes, bytes - at));
    s.fail_on_transport(
        MPI_Ibcast(bytes_of(tensor) + at, count, MPI_BYTE, root, s.comm, &s.requests.emplace_back()),
        "MPI_Ibcast");
    s.wait();
  }
}

void Mpi::all_gather(const Tensor& part, Tensor& gathered) {
  State& s = *state_;
  const Call own = s.call(Operation::all_gather, detail::examine_all_gather(part, gathered, s.size), part, 0);
  const detail::Entered entered(s.slot(), Operation::all_gather, own.elements, own.dtype);
  s.meet(own);
  const auto bytes = static_cast<std::int64_t>(part.nbytes());
  if (bytes == 0) return;
  if (bytes > Call::max_payload) return s.gather(part, gathered, s.equal_parts(bytes));
  for (int r = 0; r < s.size; ++r)
    std::memcpy(bytes_of(gathered) + bytes * r, s.calls[static_cast<std::size_t>(r)].payload,
                static_cast<std::size_t>(bytes));
}

void Mpi::all_gather_v(const Tensor& part, Tensor& gathered, std::span<const std::int64_t> counts) {
  State& s = *state_;
  const Call own = s.call(Operation::all_gather_v,
                          detail::examine_all_gather_v(part, gathered, counts, s.rank, s.size), gathered, 0);
  const detail::Entered entered(s.slot(), Operation::all_gather_v, own.elements, own.dtype);
  s.meet_with_same(own, counts);
  const auto row = detail::row_elements(gathered) * static_cast<std::int64_t>(gathered.element_size());
  s.gather(part, gathered, scaled(counts, row));
}

void Mpi::all_to_all(const Tensor& sent, Tensor& received) {
  State& s = *state_;
  const Call own = s.call(Operation::all_to_all, detail::examine_all_to_all(sent, received, s.size), sent, 0);
  const detail::Entered entered(s.slot(), Operation::all_to_all, own.elements, own.dtype);
  s.meet(own);
  const std::int64_t bytes = static_cast<std::int64_t>(sent.nbytes()) / s.size;
  const std::vector<std::int64_t> parts = s.equal_parts(bytes);
  s.scatter(bytes_of(sent), parts, bytes_of(received), parts, bytes);
}

void Mpi::all_to_all_v(const Tensor& sent, std::span<const std::int64_t> send_counts, Tensor& received,
                       std::span<const std::int64_t> receive_counts) {
  State& s = *state_;
  const Problem problem = detail::examine_all_to_all_v(sent, send_counts, received, receive_counts, s.size);
  Call own = s.call(Operation::all_to_all_v, problem, sent, 0);
  // Ranks send unlike numbers of rows, but rows of one size.
  if (problem == Problem::none) own.elements = detail::row_elements(sent);
  const detail::Entered entered(s.slot(), Operation::all_to_all_v, own.elements, own.dtype);
  const std::vector<std::int64_t> all = s.meet_with(own, {send_counts, receive_counts});
  // all: of each rank, the rows for each rank, then those from each.
  std::int64_t most = 0;
  for (int from = 0; from < s.size; ++from)
    for (int to = 0; to < s.size; ++to) {
      const std::int64_t rows = all[static_cast<std::size_t>(2 * s.size * from + to)],
                         expected = all[static_cast<std::size_t>(2 * s.size * to + s.size + from)];
      if (rows != expected)
        throw RunError(detail::misfit(s.name, s.world_rank(from), concat(rows, " rows"), s.world_rank(to),
                                      concat(expected, " rows")));
      most = std::max(most, rows);
    }
  const std::int64_t row = own.elements * static_cast<std::int64_t>(sent.element_size());
  s.scatter(bytes_of(sent), scaled(send_counts, row), bytes_of(received), scaled(receive_counts, row),
            most * row);
}

void Mpi::send(const Tensor& tensor, int to) {
  const Transfer transfers[] = {Transfer::send(tensor, to)};
  state_->exchange(Operation::send, transfers);
}

void Mpi::recv(Tensor& tensor, int from) {
  const Transfer transfers[] = {Transfer::receive(tensor, from)};
  state_->exchange(Operation::recv, transfers);
}

void Mpi::exchange(std::span<const Transfer> transfers) { state_->exchange(Operation::exchange, transfers); }

void Mpi::barrier() {
  Call own;
  own.operation = static_cast<std::int32_t>(Operation::barrier);
  const detail::Entered entered(state_->slot(), Operation::barrier, 0, -1);
  state_->meet(own);
}

std::int64_t Mpi::all_reduce_value(std::int64_t value, ReduceOp op) {
  return state_->reduce_value(value, at::kLong, op);
}

double Mpi::all_reduce_value(double value, ReduceOp op) {
  return state_->reduce_value(value, at::kDouble, op);
}

Mpi Mpi::split(int color, int key, std::string_view name) {
  State& s = *state_;
  Call own;
  own.operation = static_cast<std::int32_t>(Operation::split);
  own.problem = static_cast<std::int32_t>(color >= 0 ? Problem::none : Problem::color);
  const detail::Entered entered(s.slot(), Operation::split, 0, -1);
  s.meet(own);
  MPI_Comm comm = MPI_COMM_NULL;
  int status = MPI_SUCCESS;
  // All ranks have come, but one may stop on the way.
  detail::call_in_time([&] { status = MPI_Comm_split(s.comm, color, key, &comm); }, s.options.timeout_seconds,
                       &s.slot(), [&] { s.end_for(detail::describe_absent(*s.job, s.members)); });
  s.fail_on_transport(status, "MPI_Comm_split");
  return Mpi(std::make_unique<State>(s.job, s.options, comm, name));
}

}  // namespace mgfl::parallel
