/// Bringing tensors to the host for kunlunxin: every copy is waited for.
/// Python target: megatron.core.dist_checkpointing.strategies.filesystem_async.preload_tensors
#pragma once

#include "policies/checkpoint/preload_tensors_decl.hpp"
#include "vendors/kunlunxin/manifest.hpp"

namespace mgfl {

/// As the original with non_blocking = false, whatever the caller asks for.
template <>
struct implementation<targets::preload_tensors, vendors::kunlunxin>
    : overrides<targets::preload_tensors, vendors::kunlunxin> {
  static std::vector<Tensor> call(std::span<const Tensor> tensors, bool non_blocking);
};

}  // namespace mgfl
