#include "vendors/cuda/device/place.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace mgfl::cuda {

// LibTorch's CUDA library registers itself with c10, which every build links, and answers through it. Where
// it is not loaded there is no current stream, and tensors over memory of the caller's run on the default
// stream.
std::optional<Place> place_of(const Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  const auto device = tensor.device();
  if (!libtorch_has_cuda()) return Place{device.index(), nullptr};
  const auto* streams = c10::impl::getDeviceGuardImpl(at::kCUDA);
  return Place{device.index(), streams->getStreamNativeHandle(streams->getStream(device))};
}

bool libtorch_has_cuda() { return c10::impl::hasDeviceGuardImpl(at::kCUDA); }

}  // namespace mgfl::cuda
