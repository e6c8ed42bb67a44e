#include "vendors/cuda/kernels/rotary.hpp"

#include "vendors/cuda/operations/rotary.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

namespace {

cuda::Heads heads_of(const kernels::QkvLayout& layout, const Tensor& cos) {
  return {layout.groups, layout.queries_per_group, layout.head_dim, cos.size(1)};
}

}  // namespace

void implementation<targets::qk_norm_rotary, vendors::cuda>::call(const Tensor& qkv, const Tensor& q_norm,
                                                                  const Tensor& k_norm, double eps,
                                                                  const Tensor& cos, const Tensor& sin,
                                                                  const kernels::QkvLayout& layout,
                                                                  Tensor& out, Tensor& rstd) {
  const bool done =
      cuda::run("qk_norm_rotary", {{qkv, q_norm, k_norm, out}, {cos, sin, rstd}}, [&]<class D>(D) {
        using M = cuda::main_of<D>;
        return cuda::QkNormRotary<D>{
            cuda::in<D>(qkv),   cuda::in<D>(q_norm), cuda::in<D>(k_norm),   static_cast<M>(eps),
            cuda::in<M>(cos),   cuda::in<M>(sin),    heads_of(layout, cos), cuda::out<D>(out),
            cuda::out<M>(rstd), qkv.size(0)};
      });
  if (!done)
    implementation<targets::qk_norm_rotary, vendors::original>::call(qkv, q_norm, k_norm, eps, cos, sin,
                                                                     layout, out, rstd);
}

void implementation<targets::qk_norm_rotary_backward, vendors::cuda>::call(
    Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
    const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout, Tensor& q_norm_grad,
    Tensor& k_norm_grad) {
  const bool norms = q_norm.defined() || k_norm.defined();
  const Tensor& input = norms ? qkv : dqkv;  // unused where nothing is normed
  const bool done = cuda::run(
      "qk_norm_rotary_backward", {{dqkv, input, q_norm, k_norm}, {cos, sin, rstd, q_norm_grad, k_norm_grad}},
      [&]<class D>(D) {
        using M = cuda::main_of<D>;
        return cuda::QkNormRotaryBackward<D>{
            cuda::out<D>(dqkv),        cuda::in<D>(input),        cuda::in<D>(q_norm), cuda::in<D>(k_norm),
            cuda::in<M>(cos),          cuda::in<M>(sin),          cuda::in<M>(rstd),   heads_of(layout, cos),
            cuda::out<M>(q_norm_grad), cuda::out<M>(k_norm_grad), dqkv.size(0)};
      });
  if (!done)
    implementation<targets::qk_norm_rotary_backward, vendors::original>::call(
        dqkv, qkv, q_norm, k_norm, cos, sin, rstd, layout, q_norm_grad, k_norm_grad);
}

}  // namespace mgfl
