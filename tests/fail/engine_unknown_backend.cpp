// A backend that nobody registered.
// expected-error: mgfl: no engine is registered under this model type and backend.
// only-error
#include "scenes/engine.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
#else
using Actor = engine_for<"language_model", "fsdp">::engine<P, O, S>;
#endif
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
