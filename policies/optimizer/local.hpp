/// The optimizer policy without sharding: every data-parallel rank holds the whole optimizer state.
#pragma once

#include "policies/optimizer/mixed_precision_optimizer.hpp"

namespace mgfl::optimizer {

/// `Local<AdamW, Bf16WithFp32Main>`.
template <class Kind, Precision P>
struct Local {
  static_assert(std::is_same_v<Kind, AdamW>, "mgfl: Local<> knows AdamW.");
  using precision = P;
  template <parallel::Communicator C>
  using optimizer_type = MixedPrecisionOptimizer<P, C>;
};

static_assert(OptimizerPolicy<Local<AdamW, Fp32>>);

}  // namespace mgfl::optimizer
