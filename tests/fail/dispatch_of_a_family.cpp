// dispatch<T> where T is a family.
// expected-error: mgfl: this target is a family; use dispatch_family<T, C> instead of dispatch<T>.
#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
inline constexpr auto norm = dispatch_family<targets::get_grad_norm_fp32, parallel::communicator_archetype>;
#else
inline constexpr auto norm = dispatch<targets::get_grad_norm_fp32>;
#endif
}  // namespace mgfl
