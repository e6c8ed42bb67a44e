// A vendor's engine that comes after the first use of the registry.
// expected-error: mgfl: this engine is registered, but its struct was not defined before its first use.
// only-error
#define MGFL_TEST_ENGINES engine_entry<"language_model", "megatron", acme_fast>
#include "scenes/engine.hpp"

namespace mgfl {
#ifndef MGFL_TWIN
using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
#endif
struct acme_fast : vendor_engine<acme_fast, vendors::acme> {
  template <class P, class O, class S>
  using engine = Fake<P, O, S, 3>;
};
#ifdef MGFL_TWIN
using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
static_assert(Actor::number == 3);
#endif
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
