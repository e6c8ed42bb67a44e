/// The communicator over MPI, for CPU tensors: rank-ordered reductions, calls compared between ranks, a
/// deadline on every wait; ranks of one machine move large tensors through memory that they share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "mgfl/parallel/communicator.hpp"
#include "policies/parallel/launcher.hpp"

namespace mgfl::parallel {

struct MpiOptions {
  double timeout_seconds = 0;  // longest wait for messages; 0: the session's
  // Where ranks of several machines send messages:
  std::int64_t gather_bytes = 1 << 17;   // of all ranks, at most 1 GiB: up to here, a reduction is one gather
  std::int64_t segment_bytes = 1 << 19;  // of a larger reduction: what one rank reduces at a time
  std::int64_t message_bytes = 1 << 30;  // longest single MPI message
  // Where one machine has all ranks of a group: what each of them shows the others at a time; at most 1 MiB.
  // 0: they send messages.
  std::int64_t stage_bytes = 1 << 20;
};

/// A group of ranks of an MPI job. Movable. Must not outlive the session.
///
/// Each collective first compares its name, dtype, size and arguments between the ranks; a call that differs,
/// or whose tensor is not a contiguous CPU tensor, throws one and the same RunError on every rank before any
/// data moves. So does a send whose receive differs, on both ranks, after the other transfers of their calls.
/// A wait beyond the deadline ends the job with status 2 and a message that names this rank, the operation,
/// the ranks that did not come, and what those and the others do.
///
/// Sums run in rank order for each element, whatever its place in the tensor: the bits depend on nothing but
/// the values. 16-bit floats are reduced in fp32 and rounded once; a sum of bools is their "or"; integers
/// wrap and have no average; NaN wins a max.
class Mpi {
 public:
  /// All ranks of the job. Collective.
  explicit Mpi(const MpiSession& session, MpiOptions options = {});
  Mpi(Mpi&&) noexcept;
  Mpi& operator=(Mpi&&) noexcept;
  ~Mpi();

  int rank() const;
  int size() const;
  /// The rank in the whole job, which messages name.
  int world_rank() const;

  c10::DeviceType device_type_for_comm() const;  // the CPU
  void all_reduce(Tensor& tensor, ReduceOp op);
  void reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op);
  void broadcast(Tensor& tensor, int root);
  void all_gather(const Tensor& part, Tensor& gathered);
  void reduce_scatter_v(const Tensor& whole, Tensor& part, std::span<const std::int64_t> counts, ReduceOp op);
  void all_gather_v(const Tensor& part, Tensor& gathered, std::span<const std::int64_t> counts);
  void all_to_all(const Tensor& sent, Tensor& received);
  void all_to_all_v(const Tensor& sent, std::span<const std::int64_t> send_counts, Tensor& received,
                    std::span<const std::int64_t> receive_counts);
  void send(const Tensor& tensor, int to);
  void recv(Tensor& tensor, int from);
  void exchange(std::span<const Transfer> transfers);
  void barrier();
  std::int64_t all_reduce_value(std::int64_t value, ReduceOp op);
  double all_reduce_value(double value, ReduceOp op);

  /// The ranks of one color (0 or more), ordered by key, then by rank; options as here. `name` appears in
  /// messages.
  Mpi split(int color, int key, std::string_view name = "split");

 private:
  struct State;
  explicit Mpi(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

static_assert(WholeCommunicator<Mpi> && SaysDeviceTypeForComm<Mpi>);

}  // namespace mgfl::parallel
