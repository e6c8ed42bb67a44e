/// Fused RMS norm for NVIDIA GPUs; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::rms_norm, vendors::cuda> : overrides<targets::rms_norm, vendors::cuda> {
  static void call(const Tensor& x, const Tensor& residual, const Tensor& w, double eps, Tensor& sum,
                   Tensor& y, Tensor& rstd);
};

template <>
struct implementation<targets::rms_norm_backward, vendors::cuda>
    : overrides<targets::rms_norm_backward, vendors::cuda> {
  static void call(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd,
                   const Tensor& residual_grad, Tensor& dx, Tensor& w_grad);
};

}  // namespace mgfl
