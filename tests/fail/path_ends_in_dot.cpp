// A target path that ends in a dot.
// expected-error: mgfl: empty segment in a target path
#include "mgfl/override/target.hpp"

#ifdef MGFL_TWIN
struct norm : mgfl::target<"clip_grads.norm"> {};
#else
struct norm : mgfl::target<"clip_grads.norm."> {};
#endif
static_assert(!norm::key.empty());
