#include "vendors/x86/kernels/swiglu.hpp"

#include "vendors/x86/run.h"

namespace mgfl {

void implementation<targets::swiglu, vendors::x86>::call(const Tensor& gate_up, Tensor& activated) {
  const bool done = x86::run({{gate_up, activated}, {}}, [&]<class D>(D) {
    x86::swiglu(x86::in<D>(gate_up), x86::out<D>(activated), activated.size(0), activated.size(1),
                num_threads());
  });
  if (!done) implementation<targets::swiglu, vendors::original>::call(gate_up, activated);
}

void implementation<targets::swiglu_backward, vendors::x86>::call(const Tensor& d_activated,
                                                                  const Tensor& gate_up, Tensor& d_gate_up,
                                                                  Tensor& activated) {
  const bool done = x86::run({{d_activated, gate_up, d_gate_up, activated}, {}}, [&]<class D>(D) {
    x86::swiglu_backward(x86::in<D>(d_activated), x86::in<D>(gate_up), x86::out<D>(d_gate_up),
                         x86::out<D>(activated), activated.size(0), activated.size(1), num_threads());
  });
  if (!done)
    implementation<targets::swiglu_backward, vendors::original>::call(d_activated, gate_up, d_gate_up,
                                                                      activated);
}

}  // namespace mgfl
