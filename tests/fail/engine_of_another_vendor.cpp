// A manifest that registers an engine for another vendor.
// expected-error: mgfl: a manifest registers engines of its own vendor only
// only-error
#ifdef MGFL_TWIN
#define MGFL_TEST_ENGINES engine_entry<"language_model", "megatron", engines::mine, any_device, "acme">
#else
#define MGFL_TEST_ENGINES engine_entry<"language_model", "megatron", engines::mine, any_device, "musa">
#endif
#include "scenes/engine.hpp"

namespace mgfl {
using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
