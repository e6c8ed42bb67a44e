/// A class override.
#pragma once

#include "../manifest.hpp"
#include "policies/scheduler/cosine_annealing_lr_decl.hpp"

namespace mgfl {

namespace acme {
struct ConstantLR : scheduler::original::CosineAnnealingLR {
  using CosineAnnealingLR::CosineAnnealingLR;
  void step() { ++current_step_; }
};
}  // namespace acme

template <>
struct implementation<targets::CosineAnnealingLR, vendors::acme>
    : overrides<targets::CosineAnnealingLR, vendors::acme> {
  using type = acme::ConstantLR;
};

}  // namespace mgfl
