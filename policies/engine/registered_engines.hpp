/// Every engine that engine_for<...> can name in this build: mgfl's own, then those of the vendors in its
/// chain. verl: EngineRegistry, verl/workers/engine/base.py
#pragma once

#include "mgfl/engine/engine_registry.hpp"
#include "policies/engine/megatron_engine.hpp"
#include <mgfl/generated/vendor_engines.hpp>  // sanctioned here alone

namespace mgfl {

struct engines::language_model_megatron {
  template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S>
  using engine = MegatronEngineWithLMHead<P, O, S>;
};

struct engines::value_model_megatron {
  template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S>
  using engine = MegatronEngineWithValueHead<P, O, S>;
};

}  // namespace mgfl
