// A family override of a method that takes self by value.
// expected-error: mgfl: an override's call() must have exactly the original's signature (compared on the family's archetype).
#define MGFL_TEST_MANIFEST targets::unscale_main_grads
#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/unscale_main_grads_decl.hpp"

namespace mgfl {
template <>
struct implementation<targets::unscale_main_grads, vendors::acme>
    : overrides<targets::unscale_main_grads, vendors::acme> {
#ifdef MGFL_TWIN
  template <optimizer::UnscalesMainGrads Self>
  static bool call(Self& self);
#else
  template <optimizer::UnscalesMainGrads Self>
  static bool call(Self self);
#endif
};
}  // namespace mgfl

#include "policies/optimizer/unscale_main_grads.hpp"
