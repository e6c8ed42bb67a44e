// A class override that comes after the first use of the public name.
// expected-error: mgfl: implementation<T, V> was not visible at first use
// expected-error: after instantiation
#define MGFL_TEST_MANIFEST targets::CosineAnnealingLR
#define MGFL_TEST_OVERRIDES "scenes/class.hpp"
#include "mgfl/override/dispatch.hpp"

#ifndef MGFL_TWIN
using Scheduler = mgfl::override_class_t<mgfl::targets::CosineAnnealingLR>;
#endif

namespace mgfl {
struct AcmeScheduler : OriginalScheduler {
  using OriginalScheduler::OriginalScheduler;
};
template <>
struct implementation<targets::CosineAnnealingLR, vendors::acme>
    : overrides<targets::CosineAnnealingLR, vendors::acme> {
  using type = AcmeScheduler;
};
}  // namespace mgfl

#ifdef MGFL_TWIN
using Scheduler = mgfl::override_class_t<mgfl::targets::CosineAnnealingLR>;
#endif
static_assert(sizeof(Scheduler) > 0);
