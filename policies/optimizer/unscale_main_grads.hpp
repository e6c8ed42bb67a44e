/// The body of MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan that this build's vendor
/// provides. Python: megatron/core/optimizer/optimizer.py,
/// MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/unscale_main_grads_decl.hpp"

namespace mgfl::optimizer {

static_assert(family_is_checked<targets::unscale_main_grads>);

/// Calls the active body; the class's method is `return unscale_main_grads(*this);`.
template <UnscalesMainGrads Self>
bool unscale_main_grads(Self& self) {
  return dispatch_family<targets::unscale_main_grads, Self>(self);
}

}  // namespace mgfl::optimizer
