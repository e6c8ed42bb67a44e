// A vendor outside the build's chain, whose engines are not there.
// expected-error: mgfl: no engine is registered for this vendor, and it is not in the chain of this build.
// only-error
#include "scenes/engine.hpp"

namespace mgfl {
#ifdef MGFL_TWIN
using Actor = engine_for<"language_model", "megatron", build_device, "acme">::engine<P, O, S>;
#else
using Actor = engine_for<"language_model", "megatron", build_device, "musa">::engine<P, O, S>;
#endif
int step(Actor& actor) { return actor.optimizer_step(); }
}  // namespace mgfl
