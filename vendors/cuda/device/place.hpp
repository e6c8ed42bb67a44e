/// Where a tensor's kernels run.
#pragma once

#include <optional>
#include <string>

#include "mgfl/tensor/fwd.hpp"
#include "vendors/cuda/device/launch.hpp"

namespace mgfl::cuda {

/// The device of a CUDA tensor and LibTorch's current stream there; nothing for tensors elsewhere.
std::optional<Place> place_of(const Tensor& tensor);

/// Whether LibTorch's CUDA library is in this process, so that it can make CUDA tensors.
bool libtorch_has_cuda();

/// CUDA's own words where this machine offers no device, else empty.
std::string why_no_device();

}  // namespace mgfl::cuda
