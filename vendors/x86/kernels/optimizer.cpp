#include "vendors/x86/kernels/optimizer.hpp"

#include <cmath>

#include "vendors/x86/run.h"

namespace mgfl {

void implementation<targets::adamw_step, vendors::x86>::call(Tensor& main_param, const Tensor& grad,
                                                             Tensor& exp_avg, Tensor& exp_avg_sq,
                                                             Tensor& model_param,
                                                             const kernels::AdamWStep& step) {
  const double c1 = 1.0 - std::pow(step.beta1, static_cast<double>(step.step));
  const double c2 = 1.0 - std::pow(step.beta2, static_cast<double>(step.step));
  const auto f = [](double value) { return static_cast<float>(value); };
  const x86::AdamW coefficients{f(step.grad_scale), f(1.0 - step.lr * step.weight_decay),
                                f(step.beta1),      f(1.0 - step.beta1),
                                f(step.beta2),      f(1.0 - step.beta2),
                                f(step.lr / c1),    f(1.0 / std::sqrt(c2)),
                                f(step.eps)};
  const Tensor& model = model_param.defined() ? model_param : main_param;
  const bool done = x86::run({{model}, {main_param, grad, exp_avg, exp_avg_sq}}, [&]<class D>(D) {
    x86::adamw_step(x86::out<float>(main_param), x86::in<float>(grad), x86::out<float>(exp_avg),
                    x86::out<float>(exp_avg_sq), x86::out<D>(model_param), main_param.numel(), coefficients,
                    num_threads());
  });
  if (!done)
    implementation<targets::adamw_step, vendors::original>::call(main_param, grad, exp_avg, exp_avg_sq,
                                                                 model_param, step);
}

}  // namespace mgfl
