#include "swiglu.hpp"

#include <cmath>

#include "mgfl/override/dispatch.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

void implementation<targets::swiglu, vendors::acme>::call(const Tensor& gate_up, Tensor& activated) {
  if (gate_up.scalar_type() != at::kFloat)  // the next in the chain: the host's kernel set, the original
    return dispatch_next<targets::swiglu, vendors::acme>(gate_up, activated);
  const std::int64_t tokens = gate_up.size(0), ffn = gate_up.size(1) / 2;
  const float* gate = gate_up.const_data_ptr<float>();
  float* out = activated.mutable_data_ptr<float>();
  for (std::int64_t t = 0; t < tokens; ++t, gate += 2 * ffn, out += ffn)
    for (std::int64_t i = 0; i < ffn; ++i) out[i] = gate[i] / (1 + std::exp(-gate[i])) * gate[ffn + i];
}

}  // namespace mgfl
