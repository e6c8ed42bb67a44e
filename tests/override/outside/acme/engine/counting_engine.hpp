/// An engine of acme's own: mgfl's, and it counts its steps.
#pragma once

#include "../manifest.hpp"
#include "mgfl/engine/engine_entry.hpp"
#include "policies/engine/megatron_engine.hpp"

namespace mgfl::acme {

template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S>
class CountingEngine : public MegatronEngineWithLMHead<P, O, S> {
 public:
  using Base = MegatronEngineWithLMHead<P, O, S>;
  using Base::Base;

  auto optimizer_step() {
    ++steps;
    return Base::optimizer_step();
  }

  int steps = 0;
};

struct counting : vendor_engine<counting, vendors::acme> {
  template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S>
  using engine = CountingEngine<P, O, S>;
};

}  // namespace mgfl::acme
