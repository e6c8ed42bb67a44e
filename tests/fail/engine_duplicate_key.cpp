// Two engines under one key.
// expected-error: mgfl: two engines are registered under one model type, backend, device and vendor
// only-error
#include "scenes/engine.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
using Engines = registered_engines::with<engine_entry<"language_model", "megatron", engines::mine, "cpu">>;
#else
using Engines = registered_engines::with<engine_entry<"language_model", "megatron", engines::mine>>;
#endif
using Actor = Engines::engine_for<"language_model", "megatron">::engine<P, O, S>;
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
