/// AdamW for npu, on ATen's fused operator; what the kernel computes is said in
/// policies/kernels/kernels_decl.hpp.
/// Python target: megatron.core.optimizer._get_adam_class
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/npu/manifest.hpp"

namespace mgfl {

namespace npu {

/// The body for tensors in any device's memory.
void fused_adamw_step(Tensor& main_param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
                      Tensor& model_param, const kernels::AdamWStep& step);

}  // namespace npu

/// Tensors in host memory are handed on.
template <>
struct implementation<targets::adamw_step, vendors::npu> : overrides<targets::adamw_step, vendors::npu> {
  static void call(Tensor& main_param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
                   Tensor& model_param, const kernels::AdamWStep& step);
};

}  // namespace mgfl
