/// A method: `call` takes `self` first. This one is a template, since the optimizer is one: the body stays in
/// the header.
#pragma once

#include "../manifest.hpp"
#include "policies/optimizer/unscale_main_grads_decl.hpp"
#include "vendors/default/optimizer/unscale_main_grads.hpp"  // acme falls back to default, so it may use its body

namespace mgfl {

namespace acme {
inline int overflows = 0;  // steps of this process that found NaN or infinity
}

/// As vendor default's, and counts the overflows.
template <>
struct implementation<targets::unscale_main_grads, vendors::acme>
    : overrides<targets::unscale_main_grads, vendors::acme> {
  template <optimizer::UnscalesMainGrads Self>
  static bool call(Self& self) {
    const bool found = implementation<targets::unscale_main_grads, vendors::default_>::call(self);
    acme::overflows += found;
    return found;
  }
};

}  // namespace mgfl
