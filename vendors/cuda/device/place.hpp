/// Where a tensor's kernels run.
#pragma once

#include <optional>

#include "mgfl/tensor/fwd.hpp"
#include "vendors/cuda/device/launch.hpp"

namespace mgfl::cuda {

/// The device of a CUDA tensor and LibTorch's current stream there; nothing for tensors elsewhere.
std::optional<Place> place_of(const Tensor& tensor);

}  // namespace mgfl::cuda
