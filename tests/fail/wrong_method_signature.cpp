// A method override that takes self by const reference where the original changes it.
// expected-error: mgfl: an override's call() must have exactly the original's signature.
#define MGFL_TEST_MANIFEST targets::unscale_main_grads
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
struct Optimizer {
  bool unscale();
};
template <>
struct implementation<targets::unscale_main_grads, vendors::original> {
  using self = Optimizer;
  static bool call(Optimizer& self);
};
template <>
struct implementation<targets::unscale_main_grads, vendors::acme>
    : overrides<targets::unscale_main_grads, vendors::acme> {
#ifdef MGFL_TWIN
  static bool call(Optimizer& self);
#else
  static bool call(const Optimizer& self);
#endif
};
bool Optimizer::unscale() { return dispatch<targets::unscale_main_grads>(*this); }
static_assert(kind_of<targets::unscale_main_grads> == target_kind::method);
}  // namespace mgfl
