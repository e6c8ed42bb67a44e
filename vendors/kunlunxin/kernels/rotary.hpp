/// Rotation of queries and keys for kunlunxin, all heads of a row in one pass; what the kernels compute is
/// said in policies/kernels/kernels_decl.hpp.
/// Python target: megatron.core.models.common.embeddings.rope_utils._apply_rotary_pos_emb_bshd
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/kunlunxin/manifest.hpp"

namespace mgfl {

namespace kunlunxin {

/// The bodies for tensors in any device's memory.
void qk_norm_rotary(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps,
                    const Tensor& cos, const Tensor& sin, const kernels::QkvLayout& layout, Tensor& out,
                    Tensor& rstd);
void qk_norm_rotary_backward(Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                             const Tensor& cos, const Tensor& sin, const Tensor& rstd,
                             const kernels::QkvLayout& layout, Tensor& q_norm_grad, Tensor& k_norm_grad);

}  // namespace kunlunxin

/// Tensors in host memory are handed on.
template <>
struct implementation<targets::qk_norm_rotary, vendors::kunlunxin>
    : overrides<targets::qk_norm_rotary, vendors::kunlunxin> {
  static void call(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps,
                   const Tensor& cos, const Tensor& sin, const kernels::QkvLayout& layout, Tensor& out,
                   Tensor& rstd);
};

template <>
struct implementation<targets::qk_norm_rotary_backward, vendors::kunlunxin>
    : overrides<targets::qk_norm_rotary_backward, vendors::kunlunxin> {
  static void call(Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                   const Tensor& cos, const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout,
                   Tensor& q_norm_grad, Tensor& k_norm_grad);
};

}  // namespace mgfl
