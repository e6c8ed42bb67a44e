/// Names the dtype M that belongs to a compute dtype D: sums, statistics and main gradients are kept in it.
#pragma once

#include <c10/core/ScalarType.h>

namespace mgfl::kernels {

/// fp64 for fp64, fp32 for everything else.
constexpr at::ScalarType main_dtype(at::ScalarType compute_dtype) {
  return compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace mgfl::kernels
