/// A function: the same name `call`, the same signature as the original's.
#pragma once

#include "../manifest.hpp"
#include "policies/kernels/kernels_decl.hpp"  // declares the original

namespace mgfl {

/// main_grad += sum of dy over tokens, summed in fp64.
template <>
struct implementation<targets::bias_grad, vendors::acme> : overrides<targets::bias_grad, vendors::acme> {
  static void call(const Tensor& dy, Tensor& main_grad);
};

}  // namespace mgfl
