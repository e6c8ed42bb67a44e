// A misspelt model type; mgfl's own keys stand in the sentence, all keys in the type beside it, and nothing
// follows.
// expected-error: mgfl: no engine is registered under this model type and backend. mgfl's own are
// expected-error: value_model
// expected-error(g++): text<mgfl::fixed_string<13>{"reward_model"}>
// expected-error(clang++): text<'r', 'e', 'w', 'a', 'r', 'd', '_', 'm', 'o', 'd', 'e', 'l'>
// only-error
#include "scenes/engine.hpp"

namespace mgfl {
using Engines = registered_engines::with<engine_entry<"reward_model", "megatron", engines::mine>>;
#ifdef MGFL_TWIN
using Actor = Engines::engine_for<"language_model", "megatron">::engine<P, O, S>;
#else
using Actor = Engines::engine_for<"languagemodel", "megatron">::engine<P, O, S>;
#endif
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
