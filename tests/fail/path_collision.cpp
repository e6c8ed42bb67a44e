// Two targets of one path.
// expected-error: mgfl: two targets share one path
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
struct FirstNorm : target<"mgfl.core.optimizer.clip_grads.norm"> {};
#ifdef MGFL_TWIN
struct SecondNorm : target<"mgfl.core.optimizer.clip_grads.norms"> {};
#else
struct SecondNorm : target<"mgfl.core.optimizer.clip_grads.norm"> {};
#endif
static_assert(targets_are_distinct<list<FirstNorm, SecondNorm>>);
}  // namespace mgfl
