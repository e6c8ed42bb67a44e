#include "vendors/kunlunxin/tensor_parallel/layers.hpp"

#include "mgfl/override/dispatch.hpp"
#include "mgfl/parallel/activation.hpp"
#include "vendors/kunlunxin/kernels/linear.hpp"

namespace mgfl {

void kunlunxin::column_parallel_linear(const tensor_parallel::ColumnParallelLinear& layer,
                                       const Act<placement::Replicated>& x, Tensor& y) {
  linear(x.tensor, layer.weight, layer.bias, y);
}

void implementation<targets::column_parallel_linear_forward, vendors::kunlunxin>::call(
    const tensor_parallel::ColumnParallelLinear& self, const Act<placement::Replicated>& x, Tensor& y) {
  if (x.tensor.is_cpu())
    return dispatch_next<targets::column_parallel_linear_forward, vendors::kunlunxin>(self, x, y);
  kunlunxin::column_parallel_linear(self, x, y);
}

}  // namespace mgfl
