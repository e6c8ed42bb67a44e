#include "policies/kernels/kernels_decl.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>

#include "policies/kernels/main_dtype.hpp"

namespace mgfl {

// Computed in M from end to end and rounded once; HF rounds x * rstd to D before it multiplies by w.
void implementation<targets::rms_norm, vendors::original>::call(const Tensor& x, const Tensor& residual,
                                                                const Tensor& w, double eps, Tensor& sum,
                                                                Tensor& y, Tensor& rstd) {
  if (residual.defined()) at::_ops::add_out::call(x, residual, 1, sum);
  const auto m = kernels::main_dtype(x.scalar_type());
  const Tensor normed = (residual.defined() ? sum : x).to(m);
  rstd.copy_(normed.square().mean(-1).add_(eps).rsqrt_());
  y.copy_(normed.mul(rstd.unsqueeze(-1)).mul_(w.to(m)));
}

// With n = x rstd and g = dy w:  dx = rstd (g - n mean(g n)).
void implementation<targets::rms_norm_backward, vendors::original>::call(const Tensor& dy, const Tensor& x,
                                                                         const Tensor& w, const Tensor& rstd,
                                                                         const Tensor& residual_grad,
                                                                         Tensor& dx, Tensor& w_grad) {
  const auto m = kernels::main_dtype(x.scalar_type());
  const Tensor scale = rstd.unsqueeze(-1);
  const Tensor n = x.to(m).mul(scale);
  const Tensor dy_main = dy.to(m);
  w_grad.add_(dy_main.mul(n).sum(0));
  const Tensor g = dy_main.mul(w.to(m));
  Tensor result = g.sub(n.mul(g.mul(n).mean(-1, /*keepdim=*/true))).mul_(scale);
  if (residual_grad.defined()) result.add_(residual_grad);
  dx.copy_(result);
}

}  // namespace mgfl
