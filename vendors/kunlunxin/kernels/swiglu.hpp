/// SwiGLU for kunlunxin, on ATen's fused SiLU; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
/// Python target: megatron.core.fusions.fused_bias_swiglu.swiglu
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/kunlunxin/manifest.hpp"

namespace mgfl {

namespace kunlunxin {

/// The bodies for tensors in any device's memory.
void swiglu(const Tensor& gate_up, Tensor& activated);
void swiglu_backward(const Tensor& d_activated, const Tensor& gate_up, Tensor& d_gate_up, Tensor& activated);

}  // namespace kunlunxin

/// Tensors in host memory are handed on.
template <>
struct implementation<targets::swiglu, vendors::kunlunxin> : overrides<targets::swiglu, vendors::kunlunxin> {
  static void call(const Tensor& gate_up, Tensor& activated);
};

template <>
struct implementation<targets::swiglu_backward, vendors::kunlunxin>
    : overrides<targets::swiglu_backward, vendors::kunlunxin> {
  static void call(const Tensor& d_activated, const Tensor& gate_up, Tensor& d_gate_up, Tensor& activated);
};

}  // namespace mgfl
