/// The communicator of one process alone: every collective is the identity, and no MPI is touched.
#pragma once

#include <cstdint>
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
  void barrier() {}
  std::int64_t all_reduce_value(std::int64_t value, ReduceOp) { return value; }
  double all_reduce_value(double value, ReduceOp) { return value; }
  Self split(int color, int key, std::string_view name = "split");
};

static_assert(Communicator<Self>);
static_assert(HasReduceScatter<Self> && HasAllReduceValue<Self> && HasSplit<Self> &&
              SaysDeviceTypeForComm<Self>);

}  // namespace mgfl::parallel
