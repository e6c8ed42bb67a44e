#include "policies/kernels/kernels_decl.hpp"

#include <ATen/core/Tensor.h>

#include "policies/kernels/main_dtype.hpp"

namespace mgfl {

void implementation<targets::swiglu, vendors::original>::call(const Tensor& gate_up, Tensor& activated) {
  const std::int64_t ffn = gate_up.size(1) / 2;
  const auto m = kernels::main_dtype(gate_up.scalar_type());
  const Tensor gate = gate_up.narrow(1, 0, ffn).to(m), up = gate_up.narrow(1, ffn, ffn).to(m);
  activated.copy_(gate.sigmoid().mul_(gate).mul_(up));
}

// silu'(g) = sigmoid(g) (1 + g (1 - sigmoid(g))).
void implementation<targets::swiglu_backward, vendors::original>::call(const Tensor& d_activated,
                                                                       const Tensor& gate_up,
                                                                       Tensor& d_gate_up, Tensor& activated) {
  const std::int64_t ffn = gate_up.size(1) / 2;
  const auto m = kernels::main_dtype(gate_up.scalar_type());
  const Tensor gate = gate_up.narrow(1, 0, ffn).to(m), up = gate_up.narrow(1, ffn, ffn).to(m);
  const Tensor d = d_activated.to(m);
  const Tensor sigmoid = gate.sigmoid();
  const Tensor silu = gate.mul(sigmoid);
  const Tensor product = silu.mul(up);
  const Tensor d_gate = sigmoid.neg().add_(1).mul_(gate).add_(1).mul_(sigmoid).mul_(up).mul_(d);
  const Tensor d_up = silu.mul(d);
  // All is computed before anything is written: d_gate_up may be gate_up, of which gate and up are views.
  activated.copy_(product);
  d_gate_up.narrow(1, 0, ffn).copy_(d_gate);
  d_gate_up.narrow(1, ffn, ffn).copy_(d_up);
}

}  // namespace mgfl
