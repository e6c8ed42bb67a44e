/// The tracker of random streams that this build's vendor provides, and the seeds of a rank's streams.
/// Python: megatron/core/tensor_parallel/random.py
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/tensor_parallel/random_decl.hpp"

namespace mgfl::tensor_parallel {

/// original::CudaRNGStatesTracker or a class that derives from it.
using CudaRNGStatesTracker = override_class_t<targets::CudaRNGStatesTracker>;

/// Gives a rank its streams, in place of those that the tracker has: "default" and "data-parallel-rng" start
/// from seed, "model-parallel-rng" from seed + 2718 + tp_rank, "expert-parallel-rng" from
/// seed + 1024 + 100 ep_rank + etp_rank. Dropout of what is whole on every tp rank draws from "default", so
/// that replicas agree; of heads or tokens that ranks share, from "model-parallel-rng". UserError for a
/// negative rank, and where two streams get one seed (tp_rank 0 with ep_rank 16 and etp_rank 94).
void model_parallel_cuda_manual_seed(CudaRNGStatesTracker& tracker, std::uint64_t seed, int tp_rank = 0,
                                     int ep_rank = 0, int etp_rank = 0);

}  // namespace mgfl::tensor_parallel
