#include "vendors/kunlunxin/kernels/rotary.hpp"

#include <ATen/core/Tensor.h>

#include <vector>

#include "mgfl/override/dispatch.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace kunlunxin {
namespace {

using kernels::QkvLayout;

/// Heads [first, first + count) of each group, which are normed alike or not at all.
struct HeadRange {
  std::int64_t first, count;
  bool normed;

  /// [tokens, groups, heads of a group, ...] -> the heads of this range.
  Tensor of(const Tensor& by_head) const { return by_head.narrow(2, first, count); }
};

/// Queries and key together, unless one of them alone is normed.
std::vector<HeadRange> head_ranges(const QkvLayout& layout, const Tensor& q_norm, const Tensor& k_norm) {
  const std::int64_t queries = layout.queries_per_group;
  if (q_norm.defined() == k_norm.defined()) return {{0, queries + 1, q_norm.defined()}};
  return {{0, queries, q_norm.defined()}, {queries, 1, k_norm.defined()}};
}

Tensor by_head(const Tensor& qkv, const QkvLayout& layout) {
  return qkv.view({qkv.size(0), layout.groups, layout.queries_per_group + 2, layout.head_dim});
}

Tensor rstd_by_head(const Tensor& rstd, const QkvLayout& layout) {
  return rstd.view({rstd.size(0), layout.groups, layout.queries_per_group + 1, 1});
}

/// The range's heads in dtype M, contiguous and apart from `by_head`.
Tensor gather(const HeadRange& range, const Tensor& by_head, at::ScalarType m) {
  return range.of(by_head).to(m, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

/// The norm weights of a normed range, [count, head_dim] of dtype M.
Tensor norm_weights(const HeadRange& range, const QkvLayout& layout, const Tensor& q_norm,
                    const Tensor& k_norm, at::ScalarType m) {
  const Tensor& any = q_norm.defined() ? q_norm : k_norm;
  Tensor weights = any.new_empty({range.count, layout.head_dim}, any.options().dtype(m));
  for (std::int64_t i = 0; i < range.count; ++i)
    weights.select(0, i).copy_(range.first + i < layout.queries_per_group ? q_norm : k_norm);
  return weights;
}

/// heads = [a cos - b sin, b cos + a sin, rest], in place.
void rotate(const Tensor& heads, const Tensor& cos, const Tensor& sin) {
  const std::int64_t half = cos.size(1);
  const Tensor c = cos.view({cos.size(0), 1, 1, half}), s = sin.view({sin.size(0), 1, 1, half});
  Tensor a = heads.narrow(3, 0, half), b = heads.narrow(3, half, half);
  const Tensor rotated = a.mul(c).addcmul_(b, s, -1);
  b.mul_(c).addcmul_(a, s);
  a.copy_(rotated);
}

}  // namespace

void qk_norm_rotary(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps,
                    const Tensor& cos, const Tensor& sin, const QkvLayout& layout, Tensor& out,
                    Tensor& rstd) {
  const auto m = kernels::main_dtype(qkv.scalar_type());
  if (!out.is_same(qkv)) out.copy_(qkv);  // v, and what the loop overwrites
  for (const HeadRange& range : head_ranges(layout, q_norm, k_norm)) {
    Tensor heads = gather(range, by_head(qkv, layout), m);
    if (range.normed) {
      const Tensor scale = heads.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
      range.of(rstd_by_head(rstd, layout)).copy_(scale);
      heads.mul_(scale).mul_(norm_weights(range, layout, q_norm, k_norm, m));
    }
    rotate(heads, cos, sin);
    range.of(by_head(out, layout)).copy_(heads);
  }
}

void qk_norm_rotary_backward(Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                             const Tensor& cos, const Tensor& sin, const Tensor& rstd,
                             const QkvLayout& layout, Tensor& q_norm_grad, Tensor& k_norm_grad) {
  const auto m = kernels::main_dtype(dqkv.scalar_type());
  for (const HeadRange& range : head_ranges(layout, q_norm, k_norm)) {
    Tensor d_heads = gather(range, by_head(dqkv, layout), m);
    rotate(d_heads, cos, sin.neg());  // the transposed rotation
    if (range.normed) {               // with n = x rstd and g = dy w:  dx = rstd (g - n mean(g n))
      const Tensor scale = range.of(rstd_by_head(rstd, layout));
      const Tensor n = gather(range, by_head(qkv, layout), m).mul_(scale);
      const Tensor grads = d_heads.mul(n).sum(at::IntArrayRef{0, 1});  // [count, head_dim]
      for (std::int64_t i = 0; i < range.count; ++i)
        (range.first + i < layout.queries_per_group ? q_norm_grad : k_norm_grad).add_(grads.select(0, i));
      d_heads.mul_(norm_weights(range, layout, q_norm, k_norm, m));
      d_heads.addcmul_(n, d_heads.mul(n).mean(-1, /*keepdim=*/true), -1).mul_(scale);
    }
    range.of(by_head(dqkv, layout)).copy_(d_heads);
  }
}

}  // namespace kunlunxin

void implementation<targets::qk_norm_rotary, vendors::kunlunxin>::call(
    const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps, const Tensor& cos,
    const Tensor& sin, const kernels::QkvLayout& layout, Tensor& out, Tensor& rstd) {
  if (qkv.is_cpu())
    return dispatch_next<targets::qk_norm_rotary, vendors::kunlunxin>(qkv, q_norm, k_norm, eps, cos, sin,
                                                                      layout, out, rstd);
  kunlunxin::qk_norm_rotary(qkv, q_norm, k_norm, eps, cos, sin, layout, out, rstd);
}

void implementation<targets::qk_norm_rotary_backward, vendors::kunlunxin>::call(
    Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
    const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout, Tensor& q_norm_grad,
    Tensor& k_norm_grad) {
  if (dqkv.is_cpu())
    return dispatch_next<targets::qk_norm_rotary_backward, vendors::kunlunxin>(
        dqkv, qkv, q_norm, k_norm, cos, sin, rstd, layout, q_norm_grad, k_norm_grad);
  kunlunxin::qk_norm_rotary_backward(dqkv, qkv, q_norm, k_norm, cos, sin, rstd, layout, q_norm_grad,
                                     k_norm_grad);
}

}  // namespace mgfl
