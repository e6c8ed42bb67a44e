// An override that comes after the first call.
// expected-error: mgfl: implementation<T, V> was not visible at first use
// expected-error: after instantiation
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#define MGFL_TEST_WITHOUT_OVERRIDE
#define MGFL_TEST_OVERRIDES "scenes/function.hpp"
#include "mgfl/override/dispatch.hpp"

#ifndef MGFL_TWIN
double norm(double grad) { return mgfl::dispatch<mgfl::targets::get_grad_norm_fp32>(grad, 2.0); }
#endif

namespace mgfl {
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::acme>
    : overrides<targets::get_grad_norm_fp32, vendors::acme> {
  static double call(const double& grad, double norm_type);
};
}  // namespace mgfl

#ifdef MGFL_TWIN
double norm(double grad) { return mgfl::dispatch<mgfl::targets::get_grad_norm_fp32>(grad, 2.0); }
#endif
