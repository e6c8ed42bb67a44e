// A manifest lists a target, and no header of the vendor specializes it.
// expected-error: mgfl: implementation<T, V> was not visible at first use
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#ifndef MGFL_TWIN
#define MGFL_TEST_WITHOUT_OVERRIDE
#endif
#define MGFL_TEST_OVERRIDES "scenes/function.hpp"
#include "mgfl/override/dispatch.hpp"

double norm(double grad) { return mgfl::dispatch<mgfl::targets::get_grad_norm_fp32>(grad, 2.0); }
