/// A kernel: a function whose tensors lie where the chip can read them.
#pragma once

#include "../manifest.hpp"
#include "policies/kernels/kernels_decl.hpp"

namespace mgfl {

/// One pass over fp32 rows; other dtypes go to the original.
template <>
struct implementation<targets::swiglu, vendors::acme> : overrides<targets::swiglu, vendors::acme> {
  static void call(const Tensor& gate_up, Tensor& activated);
};

}  // namespace mgfl
