// A vendor outside the tree that falls back to musa: its class, kernel and engine step, musa's norm,
// default's method.
#include <optional>

#include "mgfl/engine/engine_registry.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"

namespace mgfl {
static_assert(std::is_same_v<vendors::preferred, vendors::acme>);
static_assert(std::is_same_v<scheduler::CosineAnnealingLR, acme::ConstantLR>);
static_assert(std::is_base_of_v<scheduler::original::CosineAnnealingLR, scheduler::CosineAnnealingLR>);
// who derives from the public name derives from the vendor's class
struct Derived : scheduler::CosineAnnealingLR {
  using scheduler::CosineAnnealingLR::CosineAnnealingLR;
};
static_assert(std::is_same_v<decltype(&Derived::step), void (acme::ConstantLR::*)()>);
static_assert(std::is_same_v<active_vendor<targets::get_grad_norm_fp32>, vendors::musa>);
static_assert(std::is_same_v<active_vendor<targets::unscale_main_grads>, vendors::default_>);
static_assert(std::is_same_v<active_vendor<targets::swiglu>, vendors::acme>);
static_assert(kernels::swiglu == &implementation<targets::swiglu, vendors::acme>::call);
static_assert(std::is_same_v<active_vendor<targets::linear>, vendors::original>);

// an engine of one's own: acme's step, built on the original's
struct Scheduler {
  explicit Scheduler(int& optimizer, int) : steps(&optimizer) {}
  void step() { ++*steps; }
  int* steps;
};
struct AnEngine {
  static constexpr bool scheduler_builds_from_config = true;
  std::optional<int> optimizer_;
  int scheduler_config_;
  std::optional<Scheduler> scheduler_;
};
static_assert(family_is_checked<targets::build_lr_scheduler>);
static_assert(dispatch_family<targets::build_lr_scheduler, AnEngine> ==
              &implementation<targets::build_lr_scheduler, vendors::acme>::call<AnEngine>);
static_assert(std::is_same_v<active_vendor<targets::build_optimizer>, vendors::original>);

// engines by name: acme's manifest registers them for acme and its device; musa, acme's fallback, comes next
struct musas {};
struct defaults {};
struct acmes {};
static_assert(build_device.view() == "acme_chip" && build_vendor.view() == "acme");
static_assert(
    std::is_same_v<vendor_engines,
                   list<engine_entry<"language_model", "megatron", acme::counting, "acme_chip", "acme">,
                        engine_entry<"language_model", "acme", acme::counting, any_device, "acme">>>);
using Engines = EngineRegistry<engine_entry<"m", "b", musas, any_device, "musa">,
                               engine_entry<"m", "b", defaults, "acme_chip", "default">>;
static_assert(std::is_same_v<Engines::engine_for<"m", "b">, musas>);
static_assert(std::is_same_v<Engines::engine_for<"m", "b", build_device, "default">, defaults>);
static_assert(std::is_same_v<
              Engines::with<engine_entry<"m", "b", acmes, any_device, "acme">>::engine_for<"m", "b">, acmes>);
}  // namespace mgfl
