// A device that is not the build's, and that no entry names.
// expected-error: mgfl: no engine is registered for this device, and it is not the device of this build.
// only-error
#include "scenes/engine.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
using Actor = engine_for<"language_model", "megatron", "cpu">::engine<P, O, S>;
#else
using Actor = engine_for<"language_model", "megatron", "cuda">::engine<P, O, S>;
#endif
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
