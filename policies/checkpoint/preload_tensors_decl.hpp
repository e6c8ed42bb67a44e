/// Declares the original of preload_tensors; vendors include this and specialize it.
// Mirrors megatron.core.dist_checkpointing.strategies.filesystem_async.FileSystemWriterAsync.preload_tensors.
#pragma once

#include <span>
#include <vector>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/dist_checkpointing.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

/// Returns the tensors in contiguous host memory, in order; one that lies so already is returned as it is.
/// Complete on return. non_blocking lets the copies from a device overlap: the original then starts them all
/// and waits once for each device; otherwise every copy is waited for.
template <>
struct implementation<targets::preload_tensors, vendors::original> {
  static std::vector<Tensor> call(std::span<const Tensor> tensors, bool non_blocking);
};

}  // namespace mgfl
