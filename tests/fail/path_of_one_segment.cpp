// A target path of one segment.
// expected-error: mgfl: a target path needs at least two dotted segments
#include "mgfl/override/target.hpp"

#ifdef MGFL_TWIN
struct norm : mgfl::target<"clip_grads.norm"> {};
#else
struct norm : mgfl::target<"norm"> {};
#endif
static_assert(!norm::key.empty());
