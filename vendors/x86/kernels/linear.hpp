/// Bias gradient without a transposed copy for x86-64; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::bias_grad, vendors::x86> : overrides<targets::bias_grad, vendors::x86> {
  static void call(const Tensor& dy, Tensor& main_grad);
};

}  // namespace mgfl
