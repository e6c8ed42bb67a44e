/// AdamW in one pass over memory for NVIDIA GPUs; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::adamw_step, vendors::cuda> : overrides<targets::adamw_step, vendors::cuda> {
  static void call(Tensor& main_param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
                   Tensor& model_param, const kernels::AdamWStep& step);
};

}  // namespace mgfl
