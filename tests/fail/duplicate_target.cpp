// One target twice in a list.
// expected-error(g++): duplicate base type
// expected-error(clang++): specified more than once as a direct base class
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
static_assert(list<targets::linear, targets::swiglu>::has<targets::swiglu>);
#else
static_assert(list<targets::linear, targets::linear>::has<targets::linear>);
#endif
}  // namespace mgfl
