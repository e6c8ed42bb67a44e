// Shows that acme's overrides are active and right: callers write mgfl's own names and get acme's bodies.
#include <cmath>
#include <cstdio>
#include <string>

#include "mgfl/override/table.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/optimizer/mixed_precision_optimizer.hpp"
#include "policies/parallel/self.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"
#include "policies/training/initialize.hpp"

namespace {

int failures = 0;

void compare(const char* what, double found, double expected) {
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
    compare("swiglu: silu(2) * 3", activated.item<double>(), 6 / (1 + std::exp(-2.0)));
  }
}

void try_class() {
  using namespace mgfl;
  static_assert(std::is_same_v<scheduler::CosineAnnealingLR, acme::WarmupLR>);
  optimizer::Optimizer optimizer{{optimizer::ParamGroup{}}};
  scheduler::CosineAnnealingLR schedule(optimizer, /*max_steps=*/100, /*min_lr=*/0.1);
  for (int i = 0; i < 6; ++i) schedule.step();
  compare("CosineAnnealingLR: step 5", schedule.get_lr(), 0.1 + 0.9 * 0.5);
}

void try_method() {
  using namespace mgfl;
  ParamDesc desc;
  desc.name = "weight";
  desc.shape = {2};
  Tensor value, main_grad;
  auto buffer = optimizer::allocate_weights({{&desc, &value, &main_grad}}, at::kHalf);
  optimizer::allocate_training(buffer, at::kFloat);
  optimizer::OptimizerConfig config;
  config.loss_scale = 4.0;
  parallel::Self alone;
  optimizer::MixedPrecisionOptimizer<optimizer::Fp16WithLossScaler, parallel::Self> optimizer(
      buffer, config, {&alone}, &alone);

  main_grad.fill_(8.0);
  compare("overflows: finite", optimizer._unscale_main_grads_and_check_for_nan(), 0);
  compare("gradient, unscaled", main_grad[0].item<double>(), 2.0);
  main_grad.fill_(1 / 0.0);
  compare("overflows: infinite", optimizer._unscale_main_grads_and_check_for_nan(), 1);
  compare("acme::overflows", acme::overflows, 1);
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
