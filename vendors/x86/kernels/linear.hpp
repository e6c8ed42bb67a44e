/// Linear layers for x86-64: fp32 products, and weight and bias gradients, which are added to the main
/// gradients in place; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::linear, vendors::x86> : overrides<targets::linear, vendors::x86> {
  static void call(const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);
};

template <>
struct implementation<targets::linear_input_grad, vendors::x86>
    : overrides<targets::linear_input_grad, vendors::x86> {
  static void call(const Tensor& dy, const Tensor& w, Tensor& dx);
};

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
