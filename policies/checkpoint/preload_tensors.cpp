#include <algorithm>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "mgfl/tensor/lean.hpp"
#include "policies/checkpoint/preload_tensors_decl.hpp"

namespace mgfl {
namespace {

/// Waits for everything that this thread has started on the device's current stream, the copies included.
void wait_for(c10::Device device) {
  const auto* backend = c10::impl::getDeviceGuardImpl(device.type());
  backend->synchronizeStream(backend->getStream(device));
}

}  // namespace

std::vector<Tensor> implementation<targets::preload_tensors, vendors::original>::call(
    std::span<const Tensor> tensors, bool non_blocking) {
  std::vector<Tensor> loaded;
  std::vector<c10::Device> started;
  loaded.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    // Made contiguous where it lies: a strided copy between memories would be made element by element.
    loaded.push_back(tensor.contiguous().to(at::kCPU, tensor.scalar_type(), non_blocking));
    if (non_blocking && !tensor.is_cpu() &&
        std::find(started.begin(), started.end(), tensor.device()) == started.end())
      started.push_back(tensor.device());
  }
  for (const c10::Device device : started) wait_for(device);
  return loaded;
}

}  // namespace mgfl
