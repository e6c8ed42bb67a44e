/// Fused SwiGLU for NVIDIA GPUs; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::swiglu, vendors::cuda> : overrides<targets::swiglu, vendors::cuda> {
  static void call(const Tensor& gate_up, Tensor& activated);
};

template <>
struct implementation<targets::swiglu_backward, vendors::cuda>
    : overrides<targets::swiglu_backward, vendors::cuda> {
  static void call(const Tensor& d_activated, const Tensor& gate_up, Tensor& d_gate_up, Tensor& activated);
};

}  // namespace mgfl
