// A class override whose constructor needs an argument that callers do not pass.
// expected-error: mgfl: a class override must accept the constructor arguments that callers already pass.
#define MGFL_TEST_MANIFEST targets::CosineAnnealingLR
#define MGFL_TEST_OVERRIDES "scenes/class.hpp"
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
struct AcmeScheduler : OriginalScheduler {
  AcmeScheduler(int max_steps, double min_lr, int warmup_steps = 1000);
};
#else
struct AcmeScheduler : OriginalScheduler {
  AcmeScheduler(int max_steps, double min_lr, int warmup_steps);
};
#endif
template <>
struct implementation<targets::CosineAnnealingLR, vendors::acme>
    : overrides<targets::CosineAnnealingLR, vendors::acme> {
  using type = AcmeScheduler;
};
}  // namespace mgfl

static_assert(sizeof(mgfl::override_class_t<mgfl::targets::CosineAnnealingLR>) > 0);
