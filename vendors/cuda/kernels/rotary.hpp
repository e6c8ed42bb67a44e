/// Fused per-head norm and rotation of q and k for NVIDIA GPUs; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::qk_norm_rotary, vendors::cuda>
    : overrides<targets::qk_norm_rotary, vendors::cuda> {
  static void call(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps,
                   const Tensor& cos, const Tensor& sin, const kernels::QkvLayout& layout, Tensor& out,
                   Tensor& rstd);
};

template <>
struct implementation<targets::qk_norm_rotary_backward, vendors::cuda>
    : overrides<targets::qk_norm_rotary_backward, vendors::cuda> {
  static void call(Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                   const Tensor& cos, const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout,
                   Tensor& q_norm_grad, Tensor& k_norm_grad);
};

}  // namespace mgfl
