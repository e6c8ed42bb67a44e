// Shows that acme's overrides are active and right: callers write mgfl's own names and get acme's bodies.
#include <cmath>
#include <cstdio>
#include <string>

#include "mgfl/override/table.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"
#include "policies/training/initialize.hpp"

namespace {

int failures = 0;

void expect(const char* what, double found, double expected) {
  const bool equal = std::abs(found - expected) <= 1e-6 * std::abs(expected);
  std::printf("%-32s %.7g, expected %.7g%s\n", what, found, expected, equal ? "" : "  WRONG");
  failures += !equal;
}

void try_function() {
  const std::string note = mgfl::training::_compile_dependencies();
  std::printf("%-32s \"%s\"\n", "_compile_dependencies", note.c_str());
  failures += note.find("acme") == std::string::npos;
}

void try_kernel() {
  using namespace mgfl;
  static_assert(kernels::swiglu == &implementation<targets::swiglu, vendors::acme>::call);
  for (const auto dtype : {at::kFloat, at::kDouble}) {  // acme's own loop, then the original
    Tensor gate_up = zeros({1, 2}, dtype), activated = zeros({1, 1}, dtype);
    gate_up[0][0].fill_(2.0);
    gate_up[0][1].fill_(3.0);
    kernels::swiglu(gate_up, activated);
    expect("swiglu: silu(2) * 3", activated.item<double>(), 6 / (1 + std::exp(-2.0)));
  }
}

void try_class() {
  using namespace mgfl;
  static_assert(std::is_same_v<scheduler::CosineAnnealingLR, acme::WarmupLR>);
  optimizer::Optimizer optimizer{{optimizer::ParamGroup{}}};
  scheduler::CosineAnnealingLR schedule(optimizer, /*max_steps=*/100, /*min_lr=*/0.1);
  for (int i = 0; i < 6; ++i) schedule.step();
  expect("CosineAnnealingLR, at step 5", schedule.get_lr(), 0.1 + 0.9 * 0.5);
}

void try_method() {
  using namespace mgfl;
  using T = targets::unscale_main_grads;
  using Self = implementation<T, vendors::original>::archetype;  // stands for every optimizer
  static_assert(dispatch_family<T, Self> == &implementation<T, vendors::acme>::call<Self>);
}

}  // namespace

int main() {
  std::printf("%s", mgfl::override_report().c_str());
  try_function();
  try_kernel();
  try_class();
  try_method();
  return failures ? 1 : 0;
}
