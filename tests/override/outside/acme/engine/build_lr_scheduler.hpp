/// A step of the engine, whatever the engine's policies: acme's, after the original.
#pragma once

#include "../manifest.hpp"
#include "mgfl/engine/engine_steps_decl.hpp"

namespace mgfl {

template <>
struct implementation<targets::build_lr_scheduler, vendors::acme>
    : overrides<targets::build_lr_scheduler, vendors::acme> {
  template <class Self>
  static void call(Self& engine) {
    implementation<targets::build_lr_scheduler, vendors::original>::call(engine);
    engine.scheduler_->step();
  }
};

}  // namespace mgfl
