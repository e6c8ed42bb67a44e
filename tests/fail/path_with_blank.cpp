// A target path with a character no name has.
// expected-error: mgfl: a target path is made of letters, digits, _ and dots
#include "mgfl/override/target.hpp"

#ifdef MGFL_TWIN
struct norm : mgfl::target<"clip_grads.norm"> {};
#else
struct norm : mgfl::target<"clip_grads. norm"> {};
#endif
static_assert(!norm::key.empty());
