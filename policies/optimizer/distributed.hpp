/// The optimizer policy with sharding (ZeRO-1): each data-parallel rank holds main weights and optimizer
/// state of its share of the parameters.
#pragma once

#include "policies/optimizer/flat_policy.hpp"

namespace mgfl::optimizer {

/// `Distributed<AdamW, Bf16WithFp32Main>`. Weights and gradients stay whole on every rank. After the
/// reduction a rank's main gradients are those of the job in its shard only. The communicator is a
/// WholeCommunicator.
template <FlatOptimizer Kind, Precision P>
struct Distributed : FlatPolicy<Kind, P, Sharded> {};

static_assert(OptimizerPolicy<Distributed<AdamW, Fp32>>);

}  // namespace mgfl::optimizer
