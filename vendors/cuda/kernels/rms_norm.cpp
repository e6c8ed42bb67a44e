#include "vendors/cuda/kernels/rms_norm.hpp"

#include "vendors/cuda/operations/rms_norm.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

void implementation<targets::rms_norm, vendors::cuda>::call(const Tensor& x, const Tensor& residual,
                                                            const Tensor& w, double eps, Tensor& sum,
                                                            Tensor& y, Tensor& rstd) {
  const bool done = cuda::run("rms_norm", {{x, residual, w, sum, y}, {rstd}}, [&]<class D>(D) {
    using M = cuda::main_of<D>;
    return cuda::RmsNorm<D>{cuda::in<D>(x),    cuda::in<D>(residual), cuda::in<D>(w),     static_cast<M>(eps),
                            cuda::out<D>(sum), cuda::out<D>(y),       cuda::out<M>(rstd), x.size(0),
                            x.size(1)};
  });
  if (!done) implementation<targets::rms_norm, vendors::original>::call(x, residual, w, eps, sum, y, rstd);
}

void implementation<targets::rms_norm_backward, vendors::cuda>::call(const Tensor& dy, const Tensor& x,
                                                                     const Tensor& w, const Tensor& rstd,
                                                                     const Tensor& residual_grad, Tensor& dx,
                                                                     Tensor& w_grad) {
  const bool done =
      cuda::run("rms_norm_backward", {{dy, x, w, residual_grad, dx}, {rstd, w_grad}}, [&]<class D>(D) {
        using M = cuda::main_of<D>;
        return cuda::RmsNormBackward<D>{cuda::in<D>(dy),
                                        cuda::in<D>(x),
                                        cuda::in<D>(w),
                                        cuda::in<M>(rstd),
                                        cuda::in<D>(residual_grad),
                                        cuda::out<D>(dx),
                                        cuda::out<M>(w_grad),
                                        x.size(0),
                                        x.size(1)};
      });
  if (!done)
    implementation<targets::rms_norm_backward, vendors::original>::call(dy, x, w, rstd, residual_grad, dx,
                                                                        w_grad);
}

}  // namespace mgfl
