#include "vendors/kunlunxin/kernels/linear.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/mm_ops.h>

#include <optional>

#include "mgfl/override/dispatch.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace kunlunxin {

void linear(const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  at::_ops::linear_out::call(x.contiguous(), w.contiguous(),
                             bias.defined() ? std::optional(bias.contiguous()) : std::nullopt, y);
}

void linear_input_grad(const Tensor& dy, const Tensor& w, Tensor& dx) {
  at::_ops::mm_out::call(dy.contiguous(), w.contiguous(), dx);
}

// The product adds to the main gradient as it goes (beta = 1): no [out, in] intermediate, and 16-bit inputs
// are never rounded again. No ATen operator that every device serves takes 16-bit matrices with an fp32 sum,
// so they are widened first.
void linear_weight_grad(const Tensor& dy, const Tensor& x, Tensor& main_grad) {
  const auto m = kernels::main_dtype(x.scalar_type());
  main_grad.addmm_(dy.to(m).contiguous().t(), x.to(m).contiguous());
}

}  // namespace kunlunxin

void implementation<targets::linear, vendors::kunlunxin>::call(const Tensor& x, const Tensor& w,
                                                               const Tensor& bias, Tensor& y) {
  if (x.is_cpu()) return dispatch_next<targets::linear, vendors::kunlunxin>(x, w, bias, y);
  kunlunxin::linear(x, w, bias, y);
}

void implementation<targets::linear_input_grad, vendors::kunlunxin>::call(const Tensor& dy, const Tensor& w,
                                                                          Tensor& dx) {
  if (dy.is_cpu()) return dispatch_next<targets::linear_input_grad, vendors::kunlunxin>(dy, w, dx);
  kunlunxin::linear_input_grad(dy, w, dx);
}

void implementation<targets::linear_weight_grad, vendors::kunlunxin>::call(const Tensor& dy, const Tensor& x,
                                                                           Tensor& main_grad) {
  if (dy.is_cpu()) return dispatch_next<targets::linear_weight_grad, vendors::kunlunxin>(dy, x, main_grad);
  kunlunxin::linear_weight_grad(dy, x, main_grad);
}

}  // namespace mgfl
