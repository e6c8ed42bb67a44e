// A target whose original is declared nowhere.
// expected-error: an original's into a *_decl.hpp under policies/.
#include "mgfl/override/dispatch.hpp"
#ifdef MGFL_TWIN
#include "policies/kernels/kernels_decl.hpp"
#endif

inline constexpr auto swiglu = mgfl::dispatch<mgfl::targets::swiglu>;
