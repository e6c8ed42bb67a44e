#include "vendors/cuda/kernels/optimizer.hpp"

#include <cmath>

#include "vendors/cuda/operations/adamw.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

void implementation<targets::adamw_step, vendors::cuda>::call(Tensor& main_param, const Tensor& grad,
                                                              Tensor& exp_avg, Tensor& exp_avg_sq,
                                                              Tensor& model_param,
                                                              const kernels::AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  const Tensor& model = model_param.defined() ? model_param : main_param;
  const cuda::Operands operands{{model}, {main_param, grad, exp_avg, exp_avg_sq}};
  const bool done = cuda::run("adamw_step", operands, [&]<class D>(D) {
    using M = cuda::main_of<D>;
    const auto m = [](double factor) { return static_cast<M>(factor); };
    const cuda::AdamWFactors<M> factors{m(step.grad_scale),
                                        m(1 - step.lr * step.weight_decay),
                                        m(step.beta1),
                                        m(1 - step.beta1),
                                        m(step.beta2),
                                        m(1 - step.beta2),
                                        m(step.lr / correction1),
                                        m(std::sqrt(correction2)),
                                        m(step.eps)};
    return cuda::AdamW<D>{cuda::out<M>(main_param),
                          cuda::in<M>(grad),
                          cuda::out<M>(exp_avg),
                          cuda::out<M>(exp_avg_sq),
                          cuda::out<D>(model_param),
                          main_param.numel(),
                          factors};
  });
  if (done) return;
  cuda::check_on_host("adamw_step", operands);
  implementation<targets::adamw_step, vendors::original>::call(main_param, grad, exp_avg, exp_avg_sq,
                                                               model_param, step);
}

}  // namespace mgfl
