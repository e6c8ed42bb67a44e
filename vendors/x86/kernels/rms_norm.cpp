#include "vendors/x86/kernels/rms_norm.hpp"

#include "vendors/x86/run.h"

namespace mgfl {

void implementation<targets::rms_norm, vendors::x86>::call(const Tensor& x, const Tensor& residual,
                                                           const Tensor& w, double eps, Tensor& sum,
                                                           Tensor& y, Tensor& rstd) {
  const bool done = x86::run({{x, residual, w, sum, y}, {rstd}}, [&]<class D>(D) {
    x86::rms_norm(x86::in<D>(x), x86::in<D>(residual), x86::in<D>(w), static_cast<float>(eps),
                  x86::out<D>(sum), x86::out<D>(y), x86::out<float>(rstd), x.size(0), x.size(1),
                  num_threads());
  });
  if (!done) implementation<targets::rms_norm, vendors::original>::call(x, residual, w, eps, sum, y, rstd);
}

void implementation<targets::rms_norm_backward, vendors::x86>::call(const Tensor& dy, const Tensor& x,
                                                                    const Tensor& w, const Tensor& rstd,
                                                                    const Tensor& residual_grad, Tensor& dx,
                                                                    Tensor& w_grad) {
  const bool done = x86::run({{dy, x, w, residual_grad, dx}, {rstd, w_grad}}, [&]<class D>(D) {
    x86::rms_norm_backward(x86::in<D>(dy), x86::in<D>(x), x86::in<D>(w), x86::in<float>(rstd),
                           x86::in<D>(residual_grad), x86::out<D>(dx), x86::out<float>(w_grad), x.size(0),
                           x.size(1), num_threads());
  });
  if (!done)
    implementation<targets::rms_norm_backward, vendors::original>::call(dy, x, w, rstd, residual_grad, dx,
                                                                        w_grad);
}

}  // namespace mgfl
