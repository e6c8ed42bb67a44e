/// Linear layers that tensor-parallel ranks share, as this build's vendor provides them.
/// Python: megatron/core/tensor_parallel/layers.py
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "mgfl/parallel/activation.hpp"
#include "policies/tensor_parallel/layers_decl.hpp"

namespace mgfl::tensor_parallel {

/// See implementation<targets::column_parallel_linear_forward, vendors::original>.
inline void column_parallel_linear(const ColumnParallelLinear& layer, const Act<placement::Replicated>& x,
                                   Tensor& y) {
  dispatch<targets::column_parallel_linear_forward>(layer, x, y);
}

}  // namespace mgfl::tensor_parallel
