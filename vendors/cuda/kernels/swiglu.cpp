#include "vendors/cuda/kernels/swiglu.hpp"

#include "vendors/cuda/operations/swiglu.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

void implementation<targets::swiglu, vendors::cuda>::call(const Tensor& gate_up, Tensor& activated) {
  const bool done = cuda::run("swiglu", {{gate_up, activated}, {}}, [&]<class D>(D) {
    return cuda::Swiglu<D>{cuda::in<D>(gate_up), cuda::out<D>(activated), activated.size(0),
                           activated.size(1)};
  });
  if (!done) implementation<targets::swiglu, vendors::original>::call(gate_up, activated);
}

void implementation<targets::swiglu_backward, vendors::cuda>::call(const Tensor& d_activated,
                                                                   const Tensor& gate_up, Tensor& d_gate_up,
                                                                   Tensor& activated) {
  const bool done =
      cuda::run("swiglu_backward", {{d_activated, gate_up, d_gate_up, activated}, {}}, [&]<class D>(D) {
        return cuda::SwigluBackward<D>{cuda::in<D>(d_activated), cuda::in<D>(gate_up),
                                       cuda::out<D>(d_gate_up),  cuda::out<D>(activated),
                                       activated.size(0),        activated.size(1)};
      });
  if (!done)
    implementation<targets::swiglu_backward, vendors::original>::call(d_activated, gate_up, d_gate_up,
                                                                      activated);
}

}  // namespace mgfl
