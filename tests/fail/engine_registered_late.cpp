// A manifest that is written after the registry: too late to be seen.
// expected-error: after instantiation
#ifdef MGFL_TWIN
#define MGFL_TEST_ENGINES engine_entry<"language_model", "megatron", engines::mine>
#endif
#include "scenes/engine.hpp"

namespace mgfl {
#ifndef MGFL_TWIN
template <>
struct manifest<vendors::acme> {
  using overrides = list<>;
  using engines = list<engine_entry<"language_model", "megatron", engines::mine>>;
};
#endif
using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
