/// Fused SwiGLU for x86-64; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::swiglu, vendors::x86> : overrides<targets::swiglu, vendors::x86> {
  static void call(const Tensor& gate_up, Tensor& activated);
};

template <>
struct implementation<targets::swiglu_backward, vendors::x86>
    : overrides<targets::swiglu_backward, vendors::x86> {
  static void call(const Tensor& d_activated, const Tensor& gate_up, Tensor& d_gate_up, Tensor& activated);
};

}  // namespace mgfl
