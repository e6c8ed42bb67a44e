// A manifest whose `engines` lists the engine itself.
// expected-error: mgfl: `engines` of a manifest is a list of engine_entry<model type, backend, Engine>
// only-error
#ifdef MGFL_TWIN
#define MGFL_TEST_ENGINES engine_entry<"language_model", "megatron", engines::mine>
#else
#define MGFL_TEST_ENGINES engines::mine
#endif
#include "scenes/engine.hpp"

namespace mgfl {
using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
