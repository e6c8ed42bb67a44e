// A vendor outside the tree that falls back to musa: its class, musa's norm, default's method, each of its
// three kinds.
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
}  // namespace mgfl
