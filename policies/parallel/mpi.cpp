#include "policies/parallel/mpi.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/mpi_job.hpp"

namespace mgfl::parallel {

namespace {

using detail::Operation;
using detail::Problem;

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
  std::string text(detail::name_of(static_cast<Operation>(call.operation)));
  if (call.dtype >= 0)
    text += concat(" of ", call.elements, " ", detail::name_of(static_cast<c10::ScalarType>(call.dtype)),
                   " elements");
  const auto operation = static_cast<Operation>(call.operation);
  if (operation == Operation::broadcast) text += concat(" from ", call.argument);
  if (operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
      operation == Operation::all_reduce_value)
    text += call.argument == static_cast<std::int64_t>(ReduceOp::sum) ? " by sum" : " by max";
  return text;
}

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

}  // namespace

struct Mpi::State {
  std::shared_ptr<detail::MpiJob> job;
  MpiOptions options;
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::vector<int> world_ranks, slots;  // of each rank of the group
  std::string name;
  int exceptions = std::uncaught_exceptions();

  std::vector<Call> calls;  // of each rank, for the operation that runs
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
    const std::array<int, 2> own{job->rank(), job->take_slot(name)};
    std::vector<std::array<int, 2>> all(static_cast<std::size_t>(size));
    MPI_Request request;
    detail::check_mpi(MPI_Iallgather(own.data(), 2, MPI_INT, all.data(), 2, MPI_INT, comm, &request),
                      "MPI_Iallgather");
    if (!detail::wait_all(&request, 1, options.timeout_seconds, job->slot(0)))
      job->end(2, concat("mgfl: rank ", job->rank(), " waited ", options.timeout_seconds,
                         " s for the other ranks of group '", name, "', which did not all start it."));
    for (const auto& place : all) {
      world_ranks.push_back(place[0]);
      slots.push_back(place[1]);
    }
  }

  ~State() {
    job->give_slot(slots[static_cast<std::size_t>(rank)]);
    // A collective call must not be made on the way out of a failure, which the other ranks do not share.
    if (!job->closed() && std::uncaught_exceptions() <= exceptions) MPI_Comm_free(&comm);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  detail::Slot& slot() { return job->slot(slots[static_cast<std::size_t>(rank)]); }

  // Waits for `requests`, and clears them.
  void wait() {
    bool arrived = false;
    ending_on_error([&] {
      arrived = detail::wait_all(requests.data(), static_cast<int>(requests.size()), options.timeout_seconds,
                                 slot());
    });
    if (!arrived)
      job->end(
          2, concat("mgfl: rank ", job->rank(), " waited ", options.timeout_seconds, " s in ",
                    detail::describe_absent(*job, world_ranks, slots, rank),
                    "; all ranks end. See that rank's own output; raise the time-out if it was only slow."));
    requests.clear();
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
    for (std::int64_t at = 0; at < bytes; at += options.message_bytes) {
      const int count = static_cast<int>(std::min(options.message_bytes, bytes - at));
      fail_on_transport(MPI_Isend(data + at, count, MPI_BYTE, to, 0, comm, &requests.emplace_back()),
                        "MPI_Isend");
    }
  }

  void receive(std::byte* data, std::int64_t bytes, int from) {
    for (std::int64_t at = 0; at < bytes; at += options.message_bytes) {
      const int count = static_cast<int>(std::min(options.message_bytes, bytes - at));
      fail_on_transport(MPI_Irecv(data + at, count, MPI_BYTE, from, 0, comm, &requests.emplace_back()),
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
        detail::refuse(static_cast<Operation>(call.operation), name, world_ranks[static_cast<std::size_t>(r)],
                       static_cast<Problem>(call.problem));
    }
    for (int r = 1; r < size; ++r) {
      const Call& call = calls[static_cast<std::size_t>(r)];
      if (call.operation == first.operation && call.dtype == first.dtype && call.elements == first.elements &&
          call.argument == first.argument)
        continue;
      throw RunError(concat("the ranks of group '", name, "' disagree in operation ", slot().number.load(),
                            ": rank ", world_ranks.front(), " calls ", describe(first), ", rank ",
                            world_ranks[static_cast<std::size_t>(r)], " calls ", describe(call),
                            "; every rank must make the same call."));
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

  std::byte* scratch_of(std::int64_t bytes) {
    if (static_cast<std::int64_t>(scratch.size()) < bytes) scratch.resize(static_cast<std::size_t>(bytes));
    return scratch.data();
  }

  // `bytes` from every rank, in rank order.
  void gather(const std::byte* part, std::int64_t bytes, std::byte* all) {
    if (bytes * size <= options.gather_bytes) {
      const int count = static_cast<int>(bytes);
      // The part may lie in the gathered tensor, which MPI does not allow.
      std::byte* own = all + bytes * rank;
      if (own != part) std::memmove(own, part, static_cast<std::size_t>(bytes));
      fail_on_transport(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, count, MPI_BYTE, comm,
                                       &requests.emplace_back()),
                        "MPI_Iallgather");
      return wait();
    }
    std::byte* own = all + bytes * rank;
    if (own != part) std::memmove(own, part, static_cast<std::size_t>(bytes));
    for (int step = 1; step < size; ++step) {
      const int from = (rank - step + size) % size, to = (rank + step) % size;
      receive(all + bytes * from, bytes, from);
      send(own, bytes, to);
    }
    wait();
  }

  // Reduces in place what lies in the calls of all ranks, or is gathered from them.
  void reduce_small(std::byte* data, std::int64_t elements, std::int64_t element_bytes, c10::ScalarType dtype,
                    ReduceOp op) {
    const std::int64_t bytes = elements * element_bytes;
    const bool in_calls = bytes <= Call::max_payload;
    if (!in_calls) gather(data, bytes, scratch_of(bytes * size));
    for (int r = 0; r < size; ++r)
      parts[static_cast<std::size_t>(r)] =
          in_calls ? calls[static_cast<std::size_t>(r)].payload : scratch.data() + bytes * r;
    detail::reduce_in_order(dtype, op, parts.data(), size, elements, data);
  }

  // One slab of a large reduction: rank r reduces its segment of the elements [begin, end), in rank order.
  struct Slab {
    std::int64_t begin, end, per_rank;
    std::int64_t first(int r) const { return std::min(end, begin + per_rank * r); }
    std::int64_t length(int r) const { return first(r + 1) - first(r); }
  };

  // Each rank sends the segments that others reduce, and later its own result to all: (size - 1) / size of
  // the tensor twice, as a ring would, but each element is summed in rank order wherever it lies, which a
  // ring cannot offer.
  void reduce_large(std::byte* data, std::int64_t elements, std::int64_t element_bytes, c10::ScalarType dtype,
                    ReduceOp op) {
    const std::int64_t segment = std::max<std::int64_t>(1, options.segment_bytes / element_bytes);
    std::byte* incoming = scratch_of(segment * element_bytes * size);
    const auto slab_at = [&](std::int64_t begin) {
      const std::int64_t end = std::min(elements, begin + segment * size);
      return Slab{begin, end, (end - begin + size - 1) / size};
    };
    const auto scatter = [&](const Slab& slab) {
      for (int step = 1; step < size; ++step) {
        const int from = (rank - step + size) % size, to = (rank + step) % size;
        receive(incoming + segment * element_bytes * from, slab.length(rank) * element_bytes, from);
        send(data + slab.first(to) * element_bytes, slab.length(to) * element_bytes, to);
      }
    };
    Slab slab = slab_at(0);
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
      slab = slab_at(slab.end);
      if (slab.begin < elements) scatter(slab);
      wait();
    }
  }

  template <class Value>
  Value reduce_value(Value value, c10::ScalarType dtype, ReduceOp op) {
    Call own;
    own.operation = static_cast<std::int32_t>(Operation::all_reduce_value);
    own.dtype = static_cast<std::int32_t>(dtype);
    own.elements = 1;
    own.argument = static_cast<std::int64_t>(op);
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
  if (!detail::wait_all(&request, 1, timeout_seconds, job.slot(0))) {
    std::vector<int> ranks, slots;
    for (int r = 0; r < job.size(); ++r) {
      ranks.push_back(r);
      slots.push_back(0);
    }
    job.end(2, concat("mgfl: rank ", job.rank(), " waited ", timeout_seconds, " s in ",
                      detail::describe_absent(job, ranks, slots, job.rank()), "; all ranks end."));
  }
  return comm;
}

MpiOptions completed(MpiOptions options, const detail::MpiJob& job) {
  if (options.timeout_seconds <= 0) options.timeout_seconds = job.timeout_seconds;
  check_user(options.segment_bytes > 0 && options.message_bytes > 0 && options.message_bytes <= 1 << 30,
             "MpiOptions: segment_bytes ", options.segment_bytes, " and message_bytes ",
             options.message_bytes, " must be positive, the latter at most 1 GiB.");
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
  const Call own =
      s.call(Operation::all_reduce, detail::examine(tensor), tensor, static_cast<std::int64_t>(op));
  const detail::Entered entered(s.slot(), Operation::all_reduce, own.elements, own.dtype);
  s.meet(own);
  if (own.elements == 0) return;
  const std::int64_t element_bytes = static_cast<std::int64_t>(tensor.element_size());
  if (own.elements * element_bytes * s.size <= s.options.gather_bytes)
    s.reduce_small(bytes_of(tensor), own.elements, element_bytes, tensor.scalar_type(), op);
  else
    s.reduce_large(bytes_of(tensor), own.elements, element_bytes, tensor.scalar_type(), op);
}

void Mpi::reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op) {
  State& s = *state_;
  Problem problem = detail::examine(whole);
  if (problem == Problem::none) problem = detail::examine(part);
  if (problem == Problem::none &&
      (whole.scalar_type() != part.scalar_type() || whole.numel() != part.numel() * s.size))
    problem = Problem::other_size;
  const Call own = s.call(Operation::reduce_scatter, problem, whole, static_cast<std::int64_t>(op));
  const detail::Entered entered(s.slot(), Operation::reduce_scatter, own.elements, own.dtype);
  s.meet(own);
  const std::int64_t bytes = static_cast<std::int64_t>(part.element_size());
  const std::int64_t elements = part.numel(),
                     segment = std::max<std::int64_t>(1, s.options.segment_bytes / bytes);
  const std::byte* mine = bytes_of(whole) + elements * bytes * s.rank;
  std::byte* incoming = s.scratch_of(std::min(segment, elements) * bytes * s.size);
  for (std::int64_t begin = 0; begin < elements; begin += segment) {
    const std::int64_t length = std::min(segment, elements - begin);
    for (int step = 1; step < s.size; ++step) {
      const int from = (s.rank - step + s.size) % s.size, to = (s.rank + step) % s.size;
      s.receive(incoming + length * bytes * from, length * bytes, from);
      s.send(bytes_of(whole) + (elements * to + begin) * bytes, length * bytes, to);
    }
    s.wait();
    for (int r = 0; r < s.size; ++r)
      s.parts[static_cast<std::size_t>(r)] =
          r == s.rank ? mine + begin * bytes : incoming + length * bytes * r;
    detail::reduce_in_order(part.scalar_type(), op, s.parts.data(), s.size, length,
                            bytes_of(part) + begin * bytes);
  }
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
  Problem problem = detail::examine(part);
  if (problem == Problem::none) problem = detail::examine(gathered);
  if (problem == Problem::none &&
      (part.scalar_type() != gathered.scalar_type() || gathered.numel() != part.numel() * s.size))
    problem = Problem::other_size;
  const Call own = s.call(Operation::all_gather, problem, part, 0);
  const detail::Entered entered(s.slot(), Operation::all_gather, own.elements, own.dtype);
  s.meet(own);
  const std::int64_t bytes = static_cast<std::int64_t>(part.nbytes());
  if (bytes == 0) return;
  if (bytes > Call::max_payload) return s.gather(bytes_of(part), bytes, bytes_of(gathered));
  for (int r = 0; r < s.size; ++r)
    std::memcpy(bytes_of(gathered) + bytes * r, s.calls[static_cast<std::size_t>(r)].payload,
                static_cast<std::size_t>(bytes));
}

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
  // MPI_Comm_split has no deadline; all ranks have come before it starts.
  s.meet(own);
  MPI_Comm comm = MPI_COMM_NULL;
  s.fail_on_transport(MPI_Comm_split(s.comm, color, key, &comm), "MPI_Comm_split");
  return Mpi(std::make_unique<State>(s.job, s.options, comm, name));
}

}  // namespace mgfl::parallel
