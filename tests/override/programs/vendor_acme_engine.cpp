// The engine of a vendor outside the tree: a program that names no vendor gets it.
#include "policies/engine/registered_engines.hpp"

namespace mgfl {
using P = parallel::DataParallel<parallel::Self>;
using O = optimizer::Local<optimizer::AdamW, optimizer::Fp32>;
using S = scheduler::OptimizerParamScheduler;

using Actor = engine_for<"language_model", "megatron">::engine<P, O, S>;
static_assert(std::is_same_v<Actor, acme::CountingEngine<P, O, S>>);
static_assert(std::is_base_of_v<MegatronEngineWithLMHead<P, O, S>, Actor>);
static_assert(std::is_same_v<engine_for<"language_model", "acme">::engine<P, O, S>, Actor>);
static_assert(
    std::is_same_v<engine_for<"language_model", "megatron", build_device, "default">::engine<P, O, S>,
                   MegatronEngineWithLMHead<P, O, S>>);

int steps_of(Actor& actor) {
  actor.optimizer_step();
  return actor.steps;
}
}  // namespace mgfl
