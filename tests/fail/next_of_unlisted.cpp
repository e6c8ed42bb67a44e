// Asks who comes after a vendor for a target that the vendor does not override: a caller that means dispatch.
// expected-error: mgfl: only V's own override of T may ask who comes after V, but V's manifest does not list T
#ifdef MGFL_TWIN
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#else
#define MGFL_TEST_WITHOUT_OVERRIDE
#endif
#include "mgfl/override/dispatch.hpp"
#include "scenes/function.hpp"

namespace mgfl {
double handed_on(double grad) {
  return dispatch_next<targets::get_grad_norm_fp32, vendors::acme>(grad, 2.0);
}
}  // namespace mgfl
