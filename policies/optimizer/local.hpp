/// The optimizer policy without sharding: every data-parallel rank holds the whole optimizer state.
#pragma once

#include "policies/optimizer/flat_policy.hpp"

namespace mgfl::optimizer {

/// `Local<AdamW, Bf16WithFp32Main>`, or with an optimizer of one's own in AdamW's place.
template <FlatOptimizer Kind, Precision P>
struct Local : FlatPolicy<Kind, P, Replicated> {};

static_assert(OptimizerPolicy<Local<AdamW, Fp32>>);

}  // namespace mgfl::optimizer
