// Two targets of different paths whose last two segments are the same.
// expected-error: mgfl: two targets share one method_key
// expected-error: FirstNorm
// expected-error: SecondNorm
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
struct FirstNorm : target<"mgfl.core.optimizer.clip_grads.norm"> {};
#ifdef MGFL_TWIN
struct SecondNorm : target<"mgfl.core.moe.clip_grads.norm_of_experts"> {};
#else
struct SecondNorm : target<"mgfl.core.moe.clip_grads.norm"> {};
#endif
static_assert(targets_are_distinct<list<targets::linear, FirstNorm, targets::swiglu, SecondNorm>>);
}  // namespace mgfl
