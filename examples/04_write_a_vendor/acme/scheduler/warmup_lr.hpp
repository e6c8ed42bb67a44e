/// A class: it inherits publicly from the original and accepts what callers pass; more arguments need
/// defaults.
#pragma once

#include "../manifest.hpp"
#include "policies/scheduler/cosine_annealing_lr_decl.hpp"

namespace mgfl {

namespace acme {

/// Rises from min_lr to 1 over the first tenth of max_steps, and stays there.
class WarmupLR : public scheduler::original::CosineAnnealingLR {
 public:
  using CosineAnnealingLR::CosineAnnealingLR;
  void step();
};

}  // namespace acme

template <>
struct implementation<targets::CosineAnnealingLR, vendors::acme>
    : overrides<targets::CosineAnnealingLR, vendors::acme> {
  using type = acme::WarmupLR;
};

}  // namespace mgfl
