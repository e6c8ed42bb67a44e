/// Linear layers for kunlunxin: one fused call forward, and a weight gradient that is added to the main
/// gradient by the product itself; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
/// Python target: megatron.core.tensor_parallel.layers.LinearWithGradAccumulationAndAsyncCommunication
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/kunlunxin/manifest.hpp"

namespace mgfl {

namespace kunlunxin {

/// The bodies for tensors in any device's memory.
void linear(const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);
void linear_input_grad(const Tensor& dy, const Tensor& w, Tensor& dx);
void linear_weight_grad(const Tensor& dy, const Tensor& x, Tensor& main_grad);

}  // namespace kunlunxin

/// Tensors in host memory are handed on.
template <>
struct implementation<targets::linear, vendors::kunlunxin> : overrides<targets::linear, vendors::kunlunxin> {
  static void call(const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);
};

template <>
struct implementation<targets::linear_input_grad, vendors::kunlunxin>
    : overrides<targets::linear_input_grad, vendors::kunlunxin> {
  static void call(const Tensor& dy, const Tensor& w, Tensor& dx);
};

template <>
struct implementation<targets::linear_weight_grad, vendors::kunlunxin>
    : overrides<targets::linear_weight_grad, vendors::kunlunxin> {
  static void call(const Tensor& dy, const Tensor& x, Tensor& main_grad);
};

}  // namespace mgfl
