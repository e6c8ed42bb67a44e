/// Fused RMS norm for x86-64; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::rms_norm, vendors::x86> : overrides<targets::rms_norm, vendors::x86> {
  static void call(const Tensor& x, const Tensor& residual, const Tensor& w, double eps, Tensor& sum,
                   Tensor& y, Tensor& rstd);
};

template <>
struct implementation<targets::rms_norm_backward, vendors::x86>
    : overrides<targets::rms_norm_backward, vendors::x86> {
  static void call(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd,
                   const Tensor& residual_grad, Tensor& dx, Tensor& w_grad);
};

}  // namespace mgfl
