// An override is written, and the manifest does not list it: it would never run.
// expected-error: mgfl: implementation<T, V> exists, but vendors/<V>/manifest.hpp does not list T
#ifdef MGFL_TWIN
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#endif
#define MGFL_TEST_OVERRIDES "scenes/function.hpp"
#include "mgfl/override/dispatch.hpp"
