/// A class target's original; acme's override is the test's.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

struct OriginalScheduler {
  OriginalScheduler(int max_steps, double min_lr);
};

template <>
struct implementation<targets::CosineAnnealingLR, vendors::original> {
  using type = OriginalScheduler;
  using constructor = void(int, double);
};

}  // namespace mgfl
