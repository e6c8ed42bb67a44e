// A class override that inherits privately.
// expected-error: mgfl: a class override must inherit publicly and unambiguously from the original class.
#define MGFL_TEST_MANIFEST targets::CosineAnnealingLR
#define MGFL_TEST_OVERRIDES "scenes/class.hpp"
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
struct AcmeScheduler : OriginalScheduler {
  AcmeScheduler(int max_steps, double min_lr, int warmup_steps = 1000);
};
#else
class AcmeScheduler : OriginalScheduler {
 public:
  AcmeScheduler(int max_steps, double min_lr);
};
#endif
template <>
struct implementation<targets::CosineAnnealingLR, vendors::acme>
    : overrides<targets::CosineAnnealingLR, vendors::acme> {
  using type = AcmeScheduler;
};
}  // namespace mgfl

static_assert(sizeof(mgfl::override_class_t<mgfl::targets::CosineAnnealingLR>) > 0);
