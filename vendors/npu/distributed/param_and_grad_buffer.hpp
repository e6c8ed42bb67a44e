/// The reduction of gradients on Ascend chips, whose collectives neither scale nor average.
/// Python: plugin, param_and_grad_buffer.gradient_reduce_preprocessing (npu)
#pragma once

#include "policies/distributed/param_and_grad_buffer_decl.hpp"
#include "vendors/npu/manifest.hpp"

namespace mgfl {

/// Scales before the reduction, whatever the factor, and sums.
template <>
struct implementation<targets::gradient_reduce_preprocessing, vendors::npu>
    : overrides<targets::gradient_reduce_preprocessing, vendors::npu> {
  static ReduceOp call(Tensor& grad_data, std::optional<double> scaling_factor, int group_size);
};

}  // namespace mgfl
