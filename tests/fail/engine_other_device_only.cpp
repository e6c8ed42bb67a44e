// The key is registered, but for another device than the one that is asked for.
// expected-error: mgfl: an engine is registered under this model type and backend, but none for this device
// only-error
#include "scenes/engine.hpp"

namespace mgfl {
using Engines = registered_engines::with<engine_entry<"reward_model", "mine", engines::mine, "npu">>;
#ifdef MGFL_TWIN
using Actor = Engines::engine_for<"reward_model", "mine", "npu">::engine<P, O, S>;
#else
using Actor = Engines::engine_for<"reward_model", "mine">::engine<P, O, S>;
#endif
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
