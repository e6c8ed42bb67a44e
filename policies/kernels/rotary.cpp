#include "policies/kernels/kernels_decl.hpp"

#include <ATen/core/Tensor.h>

#include <array>

#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace {

/// The heads of one kind in each group: all queries, or the key. They share a norm.
struct HeadRange {
  std::int64_t first, count;
  const Tensor& norm;

  /// [tokens, groups, heads of a group, ...] -> the heads of this range.
  Tensor of(const Tensor& by_head) const { return by_head.narrow(2, first, count); }
};

std::array<HeadRange, 2> head_ranges(const kernels::QkvLayout& layout, const Tensor& q_norm,
                                     const Tensor& k_norm) {
  return {HeadRange{0, layout.queries_per_group, q_norm}, HeadRange{layout.queries_per_group, 1, k_norm}};
}

Tensor by_head(const Tensor& qkv, const kernels::QkvLayout& layout) {
  return qkv.view({qkv.size(0), layout.groups, layout.queries_per_group + 2, layout.head_dim});
}

Tensor rstd_by_head(const Tensor& rstd, const kernels::QkvLayout& layout) {
  return rstd.view({rstd.size(0), layout.groups, layout.queries_per_group + 1, 1});
}

/// [a cos - b sin, b cos + a sin, rest]; the transposed rotation, which backward needs, is the one by -sin.
Tensor rotate(const Tensor& heads, const Tensor& cos, const Tensor& sin) {
  const std::int64_t half = cos.size(1);
  const Tensor c = cos.view({cos.size(0), 1, 1, half}), s = sin.view({sin.size(0), 1, 1, half});
  const Tensor a = heads.narrow(3, 0, half), b = heads.narrow(3, half, half);
  const Tensor rotated = heads.clone();
  rotated.narrow(3, 0, half).copy_(a.mul(c).sub_(b.mul(s)));
  rotated.narrow(3, half, half).copy_(b.mul(c).add_(a.mul(s)));
  return rotated;
}

}  // namespace

void implementation<targets::qk_norm_rotary, vendors::original>::call(const Tensor& qkv, const Tensor& q_norm,
                                                                      const Tensor& k_norm, double eps,
                                                                      const Tensor& cos, const Tensor& sin,
                                                                      const kernels::QkvLayout& layout,
                                                                      Tensor& out, Tensor& rstd) {
  const auto m = kernels::main_dtype(qkv.scalar_type());
  if (!out.is_same(qkv)) out.copy_(qkv);  // v, and what follows the loop overwrites
  for (const HeadRange& range : head_ranges(layout, q_norm, k_norm)) {
    Tensor heads = range.of(by_head(qkv, layout)).to(m);
    if (range.norm.defined()) {
      const Tensor scale = heads.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
      range.of(rstd_by_head(rstd, layout)).copy_(scale);
      heads = heads.mul(scale).mul_(range.norm.to(m));
    }
    range.of(by_head(out, layout)).copy_(rotate(heads, cos, sin));
  }
}

void implementation<targets::qk_norm_rotary_backward, vendors::original>::call(
    Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
    const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout, Tensor& q_norm_grad,
    Tensor& k_norm_grad) {
  const auto m = kernels::main_dtype(dqkv.scalar_type());
  for (const HeadRange& range : head_ranges(layout, q_norm, k_norm)) {
    const Tensor gradient = range.of(by_head(dqkv, layout));
    Tensor d_heads = rotate(gradient.to(m), cos, sin.neg());
    if (range.norm.defined()) {  // as in rms_norm_backward
      const Tensor scale = range.of(rstd_by_head(rstd, layout));
      const Tensor n = range.of(by_head(qkv, layout)).to(m).mul(scale);
      (range.first == 0 ? q_norm_grad : k_norm_grad).add_(d_heads.mul(n).sum({0, 1, 2}));
      const Tensor g = d_heads.mul(range.norm.to(m));
      d_heads = g.sub(n.mul(g.mul(n).mean(-1, /*keepdim=*/true))).mul_(scale);
    }
    gradient.copy_(d_heads);
  }
}

}  // namespace mgfl
