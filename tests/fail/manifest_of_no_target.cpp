// A manifest lists a type that is no target of the core.
// expected-error: mgfl: V's manifest lists T, which is no target
#ifdef MGFL_TWIN
#define MGFL_TEST_MANIFEST targets::unscale_main_grads
#else
#define MGFL_TEST_MANIFEST struct grad_norm_fp32
#endif
#include "mgfl/override/dispatch.hpp"
