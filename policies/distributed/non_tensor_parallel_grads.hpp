/// The sum of gradients over tensor-parallel ranks of parameters that several of these hold.
// Mirrors megatron.core.distributed.finalize_model_grads._allreduce_non_tensor_model_parallel_grads.
#pragma once

#include <span>

#include "mgfl/parallel/param.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"

namespace mgfl::distributed {

/// Sums over the tensor-parallel group, in one collective, the gradients of which each rank has a part though
/// several hold the weight: those of descriptions with partial_grad, and of keys and values that ranks share.
/// Collective.
void _allreduce_non_tensor_model_parallel_grads(std::span<const ParamRef> params,
                                                const parallel::TensorParallelGroup& group);

}  // namespace mgfl::distributed
