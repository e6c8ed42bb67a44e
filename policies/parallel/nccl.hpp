/// The communicator over NCCL, for tensors on CUDA GPUs, one a rank: a stream of its own for each group, a
/// deadline on every communication.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "mgfl/parallel/communicator.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/rendezvous.hpp"

namespace mgfl::parallel {

struct NcclOptions {
  double timeout_seconds = 0;  // longest time that a communication may take; 0: the MPI session's, else 600
  // Compares each call with the other ranks' before its data move, as Mpi does, and both ends of all
  // transfers of an exchange before any of them moves; the host waits for that. For the search of a fault:
  // without it, calls that differ hang until the deadline or mix up data.
  bool compare_calls = false;
};

/// A group of ranks, each with a GPU of its own. Movable. In builds with -DMGFL_CUDA=ON.
///
/// A call returns once its work is given to the group's stream: after all that the caller's current stream
/// was given, and before all that it will be given. Only barrier, all_reduce_value, and calls that are
/// compared, hold up the host. A communication that does not end by its deadline, an error of NCCL's, and a
/// rank that leaves early, end the job with status 2 and a message that names this rank, the operation, the
/// group, and who is absent where that is known.
///
/// 16-bit floats are reduced in fp32 and rounded once; a sum of bools is their "or"; integers wrap and have
/// no average; NaN wins a max. Sums of the `_v` operations run in rank order; the order of others is NCCL's,
/// the same on every rank and in every repeat.
class Nccl {
 public:
  /// All ranks of an MPI job, which carries NCCL's identifier. Collective. Must not outlive the session.
  explicit Nccl(const MpiSession& session, NcclOptions options = {});
  /// All ranks that torchrun started. Collective.
  explicit Nccl(const TorchrunPlace& place, NcclOptions options = {});
  Nccl(Nccl&&) noexcept;
  Nccl& operator=(Nccl&&) noexcept;
  ~Nccl();

  int rank() const;
  int size() const;
  /// The rank in the whole job, which messages name.
  int world_rank() const;
  /// This rank's GPU: its local rank modulo the number of GPUs.
  int device_index() const;

  c10::DeviceType device_type_for_comm() const;  // CUDA
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

  /// An all_reduce that the caller's stream does not wait for yet. Keeps its tensor alive.
  class Pending {
   public:
    Pending(Pending&&) noexcept;
    Pending& operator=(Pending&& other) noexcept;  // waits for its own first
    ~Pending();
    /// What the current stream is given from now on comes after the reduction. Not for the host.
    void wait();

   private:
    friend class Nccl;
    struct Reduction;
    explicit Pending(std::unique_ptr<Reduction> reduction);
    std::unique_ptr<Reduction> reduction_;
  };
  Pending start_all_reduce(Tensor& tensor, ReduceOp op);

  /// The ranks of one color (0 or more), ordered by key, then by rank; options as here. `name` appears in
  /// messages.
  Nccl split(int color, int key, std::string_view name = "split");

 private:
  struct State;
  explicit Nccl(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

static_assert(WholeCommunicator<Nccl> && SaysDeviceTypeForComm<Nccl> && HasAsyncAllReduce<Nccl>);

}  // namespace mgfl::parallel
