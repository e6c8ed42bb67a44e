#include "policies/kernels/kernels_decl.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl {

void implementation<targets::linear, vendors::original>::call(const Tensor& x, const Tensor& w,
                                                              const Tensor& bias, Tensor& y) {
  if (!bias.defined()) {
    mm_out(x, w.t(), y);
  } else if (x.scalar_type() == at::kHalf) {  // see mm_out
    y.copy_(at::_ops::addmm::call(bias.to(at::kFloat), x.to(at::kFloat), w.to(at::kFloat).t(), 1, 1));
  } else {
    at::_ops::addmm_out::call(bias, x, w.t(), 1, 1, y);  // adds the bias before it rounds
  }
}

void implementation<targets::linear_input_grad, vendors::original>::call(const Tensor& dy, const Tensor& w,
                                                                         Tensor& dx) {
  mm_out(dy, w, dx);
}

void implementation<targets::linear_weight_grad, vendors::original>::call(const Tensor& dy, const Tensor& x,
                                                                          Tensor& main_grad) {
  if (x.scalar_type() == at::kBFloat16) {
    // A bf16 GEMM is twice as fast as an fp32 one here, and rounds only once a call: its sums are fp32.
    main_grad.add_(at::_ops::mm::call(dy.t(), x));
  } else {
    const auto m = kernels::main_dtype(x.scalar_type());
    main_grad.addmm_(dy.to(m).t(), x.to(m));
  }
}

void implementation<targets::bias_grad, vendors::original>::call(const Tensor& dy, Tensor& main_grad) {
  main_grad.add_(dy.sum({0}, /*keepdim=*/false, kernels::main_dtype(dy.scalar_type())));
}

}  // namespace mgfl
