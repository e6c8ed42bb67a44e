/// Names of what tensor-parallel ranks do together, and of their random numbers.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct column_parallel_linear_forward
    : target<"mgfl.core.tensor_parallel.layers.ColumnParallelLinear.forward"> {};
struct vocab_parallel_cross_entropy
    : target<"mgfl.core.tensor_parallel.cross_entropy.vocab_parallel_cross_entropy"> {};
struct combine_vocab_statistics : target<"mgfl.core.tensor_parallel.cross_entropy.combine_vocab_statistics"> {
};

struct CudaRNGStatesTracker : target<"mgfl.core.tensor_parallel.random.CudaRNGStatesTracker"> {};

using tensor_parallel_targets = list<column_parallel_linear_forward, vocab_parallel_cross_entropy,
                                     combine_vocab_statistics, CudaRNGStatesTracker>;

}  // namespace mgfl::targets
