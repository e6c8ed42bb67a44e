#include "vendors/x86/kernels/rotary.hpp"

#include "vendors/x86/run.h"

namespace mgfl {

namespace {

x86::Heads heads_of(const kernels::QkvLayout& layout, const Tensor& cos) {
  return {layout.groups, layout.queries_per_group, layout.head_dim, cos.size(1)};
}

bool fits(const kernels::QkvLayout& layout, const Tensor& q_norm, const Tensor& k_norm) {
  return (!q_norm.defined() && !k_norm.defined()) || layout.head_dim <= x86::largest_normed_head;
}

}  // namespace

void implementation<targets::qk_norm_rotary, vendors::x86>::call(const Tensor& qkv, const Tensor& q_norm,
                                                                 const Tensor& k_norm, double eps,
                                                                 const Tensor& cos, const Tensor& sin,
                                                                 const kernels::QkvLayout& layout,
                                                                 Tensor& out, Tensor& rstd) {
  const bool done =
      fits(layout, q_norm, k_norm) &&
      x86::run({{qkv, q_norm, k_norm, out}, {cos, sin, rstd}}, [&]<class D>(D) {
        x86::qk_norm_rotary(x86::in<D>(qkv), x86::in<D>(q_norm), x86::in<D>(k_norm), static_cast<float>(eps),
                            x86::in<float>(cos), x86::in<float>(sin), heads_of(layout, cos), x86::out<D>(out),
                            x86::out<float>(rstd), qkv.size(0), num_threads());
      });
  if (!done)
    implementation<targets::qk_norm_rotary, vendors::original>::call(qkv, q_norm, k_norm, eps, cos, sin,
                                                                     layout, out, rstd);
}

void implementation<targets::qk_norm_rotary_backward, vendors::x86>::call(
    Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
    const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout, Tensor& q_norm_grad,
    Tensor& k_norm_grad) {
  const bool norms = q_norm.defined() || k_norm.defined();
  const Tensor& input = norms ? qkv : dqkv;
  const bool done =
      fits(layout, q_norm, k_norm) &&
      x86::run({{dqkv, input, q_norm, k_norm}, {cos, sin, rstd, q_norm_grad, k_norm_grad}}, [&]<class D>(D) {
        x86::qk_norm_rotary_backward(
            x86::out<D>(dqkv), x86::in<D>(input), x86::in<D>(q_norm), x86::in<D>(k_norm), x86::in<float>(cos),
            x86::in<float>(sin), x86::in<float>(rstd), heads_of(layout, cos), x86::out<float>(q_norm_grad),
            x86::out<float>(k_norm_grad), dqkv.size(0), num_threads());
      });
  if (!done)
    implementation<targets::qk_norm_rotary_backward, vendors::original>::call(
        dqkv, qkv, q_norm, k_norm, cos, sin, rstd, layout, q_norm_grad, k_norm_grad);
}

}  // namespace mgfl
