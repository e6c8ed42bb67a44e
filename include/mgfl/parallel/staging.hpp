/// Collectives on the device that a group wants, for tensors that lie elsewhere or in pieces.
#pragma once

#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl::parallel {

/// The kind of device that a defined tensor lies on.
c10::DeviceType device_type_of(const Tensor& tensor);

/// Hands `collective` the tensor itself where it lies on `device` in one piece, else a contiguous copy there,
/// whose contents come back. So views of any strides take part, each rank's of its own.
void run_staged(Tensor& tensor, c10::DeviceType device, function_ref<void(Tensor&)> collective);

/// all_reduce through the memory of the device that the group names.
template <Communicator C>
void all_reduce_staged(Tensor& tensor, ReduceOp op, C& group) {
  run_staged(tensor, get_device_type_for_comm(group, device_type_of(tensor)),
             [&](Tensor& staged) { group.all_reduce(staged, op); });
}

}  // namespace mgfl::parallel
