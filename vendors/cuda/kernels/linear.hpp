/// Bias gradients for NVIDIA GPUs; what the kernel computes is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::bias_grad, vendors::cuda> : overrides<targets::bias_grad, vendors::cuda> {
  static void call(const Tensor& dy, Tensor& main_grad);
};

}  // namespace mgfl
