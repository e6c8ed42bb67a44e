#include "vendors/cuda/kernels/linear.hpp"

#include "vendors/cuda/operations/column_sums.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

void implementation<targets::bias_grad, vendors::cuda>::call(const Tensor& dy, Tensor& main_grad) {
  const bool done = cuda::run("bias_grad", {{dy}, {main_grad}}, [&]<class D>(D) {
    using M = cuda::main_of<D>;
    return cuda::BiasGrad<D>{cuda::in<D>(dy), cuda::out<M>(main_grad), dy.size(0), dy.size(1)};
  });
  if (!done) implementation<targets::bias_grad, vendors::original>::call(dy, main_grad);
}

}  // namespace mgfl
