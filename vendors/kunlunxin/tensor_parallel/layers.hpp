/// Column-parallel linear layers for kunlunxin: the chip's linear operator at once, on contiguous matrices.
/// Python target: megatron.core.tensor_parallel.layers.ColumnParallelLinear.forward
#pragma once

#include "policies/tensor_parallel/layers_decl.hpp"
#include "vendors/kunlunxin/manifest.hpp"

namespace mgfl {

namespace kunlunxin {

/// The body for tensors in any device's memory.
void column_parallel_linear(const tensor_parallel::ColumnParallelLinear& layer,
                            const Act<placement::Replicated>& x, Tensor& y);

}  // namespace kunlunxin

/// Inputs in host memory are handed on. Upstream's layer also adds its weight gradient to the main gradient:
/// targets::linear_weight_grad, kernels/linear.hpp.
template <>
struct implementation<targets::column_parallel_linear_forward, vendors::kunlunxin>
    : overrides<targets::column_parallel_linear_forward, vendors::kunlunxin> {
  using self = const tensor_parallel::ColumnParallelLinear;
  static void call(const tensor_parallel::ColumnParallelLinear& self, const Act<placement::Replicated>& x,
                   Tensor& y);
};

}  // namespace mgfl
