// An override of a class target that names no class.
// expected-error: mgfl: an override of a class says `using type = YourClass;` in its implementation<T, V>.
#define MGFL_TEST_MANIFEST targets::CosineAnnealingLR
#define MGFL_TEST_OVERRIDES "scenes/class.hpp"
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
struct AcmeScheduler : OriginalScheduler {
  using OriginalScheduler::OriginalScheduler;
};
template <>
struct implementation<targets::CosineAnnealingLR, vendors::acme>
    : overrides<targets::CosineAnnealingLR, vendors::acme> {
#ifdef MGFL_TWIN
  using type = AcmeScheduler;
#else
  using Type = AcmeScheduler;
#endif
};
}  // namespace mgfl

static_assert(sizeof(mgfl::override_class_t<mgfl::targets::CosineAnnealingLR>) > 0);
