#include "vendors/x86/kernels/linear.hpp"

#include "vendors/x86/run.hpp"

namespace mgfl {

void implementation<targets::bias_grad, vendors::x86>::call(const Tensor& dy, Tensor& main_grad) {
  const bool done = x86::run({{dy}, {main_grad}}, [&]<class D>(D) {
    x86::bias_grad(x86::in<D>(dy), x86::out<float>(main_grad), dy.size(0), dy.size(1), num_threads());
  });
  if (!done) implementation<targets::bias_grad, vendors::original>::call(dy, main_grad);
}

}  // namespace mgfl
