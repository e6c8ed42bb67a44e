/// The communicator of one process alone: every collective is the identity, and no MPI is touched.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel {

/// One rank of one. Checks its tensors as `Mpi` does, so that a program that runs here runs there.
class Self {
 public:
  int rank() const { return 0; }
  int size() const { return 1; }

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
  void send(const Tensor& tensor, int to);  // refused, as recv: there is no other rank
  void recv(Tensor& tensor, int from);
  void exchange(std::span<const Transfer> transfers);  // from this rank to itself
  void barrier() {}
  std::int64_t all_reduce_value(std::int64_t value, ReduceOp op);
  double all_reduce_value(double value, ReduceOp) { return value; }
  Self split(int color, int key, std::string_view name = "split");
};

static_assert(WholeCommunicator<Self> && SaysDeviceTypeForComm<Self>);

}  // namespace mgfl::parallel
