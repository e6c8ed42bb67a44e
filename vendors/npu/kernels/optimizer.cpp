#include "vendors/npu/kernels/optimizer.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw_ops.h>

#include <algorithm>

#include "mgfl/override/dispatch.hpp"

namespace mgfl {
namespace npu {
namespace {

/// Elements whose scaled gradient exists at once.
constexpr std::int64_t scaled_elements = std::int64_t{16} << 20;

}  // namespace

void fused_adamw_step(Tensor& main_param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
                      Tensor& model_param, const kernels::AdamWStep& step) {
  // The operator reads the step number from a tensor on the parameters' device.
  const Tensor state_step = main_param.new_full({}, step.step, main_param.options().dtype(at::kFloat));
  const auto update = [&](std::int64_t begin, std::int64_t count, const Tensor& gradient) {
    const Tensor p = main_param.narrow(0, begin, count), m = exp_avg.narrow(0, begin, count),
                 v = exp_avg_sq.narrow(0, begin, count);
    at::_ops::_fused_adamw_::call(p, gradient, m, v, /*max_exp_avg_sqs=*/{}, state_step, step.lr, step.beta1,
                                  step.beta2, step.weight_decay, step.eps, /*amsgrad=*/false,
                                  /*maximize=*/false, /*grad_scale=*/{}, /*found_inf=*/{});
  };
  const std::int64_t n = main_param.numel();
  if (step.grad_scale == 1.0) {
    update(0, n, grad);
  } else {
    // The operator's own grad_scale divides, and writes the result back into the gradient: not ours to
    // change.
    for (std::int64_t begin = 0; begin < n; begin += scaled_elements) {
      const std::int64_t count = std::min(scaled_elements, n - begin);
      update(begin, count, grad.narrow(0, begin, count).mul(step.grad_scale));
    }
  }
  if (model_param.defined()) model_param.copy_(main_param);
}

}  // namespace npu

void implementation<targets::adamw_step, vendors::npu>::call(Tensor& main_param, const Tensor& grad,
                                                             Tensor& exp_avg, Tensor& exp_avg_sq,
                                                             Tensor& model_param,
                                                             const kernels::AdamWStep& step) {
  if (main_param.is_cpu())
    return dispatch_next<targets::adamw_step, vendors::npu>(main_param, grad, exp_avg, exp_avg_sq,
                                                            model_param, step);
  npu::fused_adamw_step(main_param, grad, exp_avg, exp_avg_sq, model_param, step);
}

}  // namespace mgfl
