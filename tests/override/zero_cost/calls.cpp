// One call of each kind of target, through what callers write, or (MGFL_BY_HAND) straight to the body of the
// vendor of examples/04_write_a_vendor. With MGFL_THROUGH_A_POINTER the choice is made while the program
// runs, as a table would.
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"
#include "policies/training/initialize.hpp"

namespace mgfl {

using C = parallel::communicator_archetype;
using Optimizer = optimizer::mixed_precision_optimizer_archetype;
template <class T, class V>
using body = implementation<T, V>;
using norm = targets::get_grad_norm_fp32;

#if defined(MGFL_BY_HAND)
constexpr auto function_of = &body<targets::compile_dependencies, vendors::acme>::call;
constexpr auto family_of = &body<norm, vendors::default_>::call<C>;
constexpr auto method_of = &body<targets::unscale_main_grads, vendors::acme>::call<Optimizer>;
using Scheduler = acme::WarmupLR;
#elif defined(MGFL_THROUGH_A_POINTER)
static auto* volatile function_of = &body<targets::compile_dependencies, vendors::acme>::call;
static auto* volatile family_of = &body<norm, vendors::default_>::call<C>;
static auto* volatile method_of = &body<targets::unscale_main_grads, vendors::acme>::call<Optimizer>;
struct Scheduler : acme::WarmupLR {
  using WarmupLR::WarmupLR;
  static inline void (WarmupLR::*volatile step_of)() = &WarmupLR::step;
  void step() { (this->*step_of)(); }
};
#else
constexpr auto function_of = &training::_compile_dependencies;
constexpr auto family_of = dispatch_family<norm, C>;
constexpr auto method_of = &optimizer::unscale_main_grads<Optimizer>;
using Scheduler = scheduler::CosineAnnealingLR;
#endif

std::string call_function() { return function_of(); }

/// The norm's arguments, whatever they are.
template <class Signature>
struct of_family;
template <class... A>
struct of_family<double (*)(A...)> {
  static double call_family(A... arguments) { return family_of(arguments...); }
};
template struct of_family<decltype(&body<norm, vendors::original>::call<C>)>;

bool call_method(Optimizer& self) { return method_of(self); }

double call_class(optimizer::Optimizer& optimizer) {
  Scheduler scheduler(optimizer, 100);
  scheduler.step();
  return scheduler.get_lr();
}

}  // namespace mgfl
