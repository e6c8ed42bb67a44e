// The build system walked another chain than the manifests describe.
// expected-error: mgfl: CMake read another `using fallback = ...;` in a manifest than the compiler does
#ifdef MGFL_TWIN
#define MGFL_TEST_CHAIN acme, default_
#else
#define MGFL_TEST_CHAIN acme
#endif
#include "mgfl/override/dispatch.hpp"
