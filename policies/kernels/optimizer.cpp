#include "policies/kernels/kernels_decl.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cmath>

namespace mgfl {
namespace {

/// torch.optim.AdamW's order of operations; the scalars are computed in double, the elements in M.
template <class M>
void adamw(Tensor& main_param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
           const kernels::AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  const M grad_scale = step.grad_scale, decay = 1 - step.lr * step.weight_decay, eps = step.eps;
  const M beta1 = step.beta1, one_minus_beta1 = 1 - step.beta1;
  const M beta2 = step.beta2, one_minus_beta2 = 1 - step.beta2;
  const M step_size = step.lr / correction1, root2 = std::sqrt(correction2);
  const M* g = grad.const_data_ptr<M>();
  M *p = main_param.data_ptr<M>(), *m = exp_avg.data_ptr<M>(), *v = exp_avg_sq.data_ptr<M>();
  at::parallel_for(0, main_param.numel(), /*grain_size=*/1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const M gradient = g[i] * grad_scale;
      m[i] = beta1 * m[i] + one_minus_beta1 * gradient;
      v[i] = beta2 * v[i] + one_minus_beta2 * gradient * gradient;
      p[i] = p[i] * decay - step_size * m[i] / (std::sqrt(v[i]) / root2 + eps);
    }
  });
}

}  // namespace

void implementation<targets::adamw_step, vendors::original>::call(Tensor& main_param, const Tensor& grad,
                                                                  Tensor& exp_avg, Tensor& exp_avg_sq,
                                                                  Tensor& model_param,
                                                                  const kernels::AdamWStep& step) {
  if (main_param.scalar_type() == at::kDouble)
    adamw<double>(main_param, grad, exp_avg, exp_avg_sq, step);
  else
    adamw<float>(main_param, grad, exp_avg, exp_avg_sq, step);
  if (model_param.defined()) model_param.copy_(main_param);
}

}  // namespace mgfl
