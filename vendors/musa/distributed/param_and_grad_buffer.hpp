/// The reduction of gradients on Moore Threads chips, whose collectives neither scale nor average.
/// Python: plugin, param_and_grad_buffer.gradient_reduce_preprocessing (musa)
#pragma once

#include "policies/distributed/param_and_grad_buffer_decl.hpp"
#include "vendors/musa/manifest.hpp"

namespace mgfl {

/// Scales before the reduction, whatever the factor, and sums.
template <>
struct implementation<targets::gradient_reduce_preprocessing, vendors::musa>
    : overrides<targets::gradient_reduce_preprocessing, vendors::musa> {
  static ReduceOp call(Tensor& grad_data, std::optional<double> scaling_factor, int group_size);
};

}  // namespace mgfl
