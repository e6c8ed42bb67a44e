/// Weight and bias gradients, added to the main gradients in place, for x86-64; what the kernels compute is
/// said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::linear_weight_grad, vendors::x86>
    : overrides<targets::linear_weight_grad, vendors::x86> {
  static void call(const Tensor& dy, const Tensor& x, Tensor& main_grad);
};

template <>
struct implementation<targets::bias_grad, vendors::x86> : overrides<targets::bias_grad, vendors::x86> {
  static void call(const Tensor& dy, Tensor& main_grad);
};

}  // namespace mgfl
