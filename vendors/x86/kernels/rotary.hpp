/// Fused per-head norm and rotation of q and k for x86-64; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::qk_norm_rotary, vendors::x86>
    : overrides<targets::qk_norm_rotary, vendors::x86> {
  static void call(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps,
                   const Tensor& cos, const Tensor& sin, const kernels::QkvLayout& layout, Tensor& out,
                   Tensor& rstd);
};

template <>
struct implementation<targets::qk_norm_rotary_backward, vendors::x86>
    : overrides<targets::qk_norm_rotary_backward, vendors::x86> {
  static void call(Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                   const Tensor& cos, const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout,
                   Tensor& q_norm_grad, Tensor& k_norm_grad);
};

}  // namespace mgfl
