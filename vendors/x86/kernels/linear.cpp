#include "vendors/x86/kernels/linear.hpp"

#include <type_traits>

#include "vendors/x86/run.h"

namespace mgfl {

void implementation<targets::linear_weight_grad, vendors::x86>::call(const Tensor& dy, const Tensor& x,
                                                                     Tensor& main_grad) {
  bool done = false;
  if constexpr (x86::isa_level >=
                x86::isa_with_bf16_products) {  // in fp32, ATen's product is as fast as ours could be
    done = dy.scalar_type() == at::kBFloat16 && x86::run({{dy, x}, {main_grad}}, [&]<class D>(D) {
             if constexpr (std::is_same_v<D, x86::bf16>)
               x86::weight_grad(x86::in<D>(dy), x86::in<D>(x), x86::out<float>(main_grad), dy.size(0),
                                dy.size(1), x.size(1), num_threads());
           });
  }
  if (!done) implementation<targets::linear_weight_grad, vendors::original>::call(dy, x, main_grad);
}

void implementation<targets::bias_grad, vendors::x86>::call(const Tensor& dy, Tensor& main_grad) {
  const bool done = x86::run({{dy}, {main_grad}}, [&]<class D>(D) {
    x86::bias_grad(x86::in<D>(dy), x86::out<float>(main_grad), dy.size(0), dy.size(1), num_threads());
  });
  if (!done) implementation<targets::bias_grad, vendors::original>::call(dy, main_grad);
}

}  // namespace mgfl
