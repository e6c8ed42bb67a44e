// A function override whose call() takes something else than the original's.
// expected-error: mgfl: an override's call() must have exactly the original's signature.
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#define MGFL_TEST_WITHOUT_OVERRIDE
#define MGFL_TEST_OVERRIDES "scenes/function.hpp"
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::acme>
    : overrides<targets::get_grad_norm_fp32, vendors::acme> {
#ifdef MGFL_TWIN
  static double call(const double& grad, double norm_type) noexcept;
#else
  static double call(const double& grad, float norm_type);
#endif
};
}  // namespace mgfl

double norm(double grad) { return mgfl::dispatch<mgfl::targets::get_grad_norm_fp32>(grad, 2.0); }
