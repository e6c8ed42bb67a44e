#include "vendors/kunlunxin/kernels/swiglu.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>

#include "mgfl/override/dispatch.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace kunlunxin {
namespace {

/// The halves of [tokens, 2 ffn], contiguous and in dtype M: fused kernels take no strided rows.
struct GateAndUp {
  explicit GateAndUp(const Tensor& gate_up) {
    const auto m = kernels::main_dtype(gate_up.scalar_type());
    const std::int64_t ffn = gate_up.size(1) / 2;
    gate = gate_up.narrow(1, 0, ffn).to(m).contiguous();
    up = gate_up.narrow(1, ffn, ffn).to(m).contiguous();
  }
  Tensor gate, up;
};

}  // namespace

void swiglu(const Tensor& gate_up, Tensor& activated) {
  const GateAndUp in(gate_up);
  activated.copy_(at::_ops::silu::call(in.gate).mul_(in.up));
}

void swiglu_backward(const Tensor& d_activated, const Tensor& gate_up, Tensor& d_gate_up, Tensor& activated) {
  const GateAndUp in(gate_up);  // d_gate_up may be gate_up: read before it is written
  const std::int64_t ffn = in.gate.size(1);
  const Tensor d = d_activated.to(in.gate.scalar_type()).contiguous();
  Tensor silu = at::_ops::silu::call(in.gate);
  const Tensor product = silu.mul(in.up);
  const Tensor d_gate = at::_ops::silu_backward::call(d.mul(in.up), in.gate);
  activated.copy_(product);
  d_gate_up.narrow(1, 0, ffn).copy_(d_gate);
  d_gate_up.narrow(1, ffn, ffn).copy_(silu.mul_(d));
}

}  // namespace kunlunxin

void implementation<targets::swiglu, vendors::kunlunxin>::call(const Tensor& gate_up, Tensor& activated) {
  if (gate_up.is_cpu()) return dispatch_next<targets::swiglu, vendors::kunlunxin>(gate_up, activated);
  kunlunxin::swiglu(gate_up, activated);
}

void implementation<targets::swiglu_backward, vendors::kunlunxin>::call(const Tensor& d_activated,
                                                                        const Tensor& gate_up,
                                                                        Tensor& d_gate_up,
                                                                        Tensor& activated) {
  if (gate_up.is_cpu())
    return dispatch_next<targets::swiglu_backward, vendors::kunlunxin>(d_activated, gate_up, d_gate_up,
                                                                       activated);
  kunlunxin::swiglu_backward(d_activated, gate_up, d_gate_up, activated);
}

}  // namespace mgfl
