// dispatch<T> where T is a class target.
// expected-error: mgfl: this target is a class; use override_class_t<T> instead of dispatch<T>.
#define MGFL_TEST_OVERRIDES "scenes/class.hpp"
#include "mgfl/override/dispatch.hpp"

#ifdef MGFL_TWIN
using Scheduler = mgfl::override_class_t<mgfl::targets::CosineAnnealingLR>;
#else
constexpr auto scheduler = mgfl::dispatch<mgfl::targets::CosineAnnealingLR>;
#endif
