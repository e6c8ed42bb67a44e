#include "vendors/npu/distributed/param_and_grad_buffer.hpp"

#include "mgfl/tensor/lean.hpp"

namespace mgfl {

ReduceOp implementation<targets::gradient_reduce_preprocessing, vendors::npu>::call(
    Tensor& grad_data, std::optional<double> scaling_factor, int) {
  if (scaling_factor) grad_data.mul_(*scaling_factor);
  return ReduceOp::sum;
}

}  // namespace mgfl
