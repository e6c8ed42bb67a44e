// mgfl's headers without the generated one.
// expected-error: mgfl is not configured: link the CMake target mgfl::mgfl
// only the twin sees the generated header
#include "mgfl/override/dispatch.hpp"
