#include "policies/tensor_parallel/layers_decl.hpp"

#include "mgfl/parallel/activation.hpp"
#include "policies/kernels/kernels.hpp"

namespace mgfl {

void implementation<targets::column_parallel_linear_forward, vendors::original>::call(
    const tensor_parallel::ColumnParallelLinear& self, const Act<placement::Replicated>& x, Tensor& y) {
  kernels::linear(x.tensor, self.weight, self.bias, y);
}

}  // namespace mgfl
