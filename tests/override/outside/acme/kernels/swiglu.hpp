/// A kernel override.
#pragma once

#include "../manifest.hpp"
#include "policies/kernels/kernels_decl.hpp"

namespace mgfl {

template <>
struct implementation<targets::swiglu, vendors::acme> : overrides<targets::swiglu, vendors::acme> {
  static void call(const Tensor& gate_up, Tensor& activated);
};

}  // namespace mgfl
