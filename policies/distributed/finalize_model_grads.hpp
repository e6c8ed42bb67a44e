/// Sums of gradients over model-parallel ranks: of parameters that tensor-parallel ranks hold whole, and of a
/// tied word embedding over pipeline stages, as this build's vendor provides it.
/// Python: megatron/core/distributed/finalize_model_grads.py
#pragma once

#include <span>
#include <utility>

#include "mgfl/override/dispatch.hpp"
#include "mgfl/parallel/param.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"
#include "policies/distributed/finalize_model_grads_decl.hpp"

namespace mgfl::distributed {

static_assert(family_is_checked<targets::allreduce_embedding_grad>);

/// See implementation<targets::allreduce_embedding_grad, vendors::original>. `embd_group`: one group, or what
/// else makes a GroupList; the original takes at most one, vendor default a list.
template <parallel::ListsGroups Groups>
void _allreduce_embedding_grad(Tensor& main_grad, Groups&& embd_group, const EmbeddingGradRows& rows = {}) {
  const parallel::GroupList groups(std::forward<Groups>(embd_group));
  using C = typename decltype(groups)::communicator_type;
  dispatch_family<targets::allreduce_embedding_grad, C>(main_grad, groups, rows);
}

/// Sums over the tensor-parallel group, in one collective, the gradients of which each rank has a part though
/// several hold the weight: those of descriptions with partial_grad, and of keys and values that ranks share.
/// Collective.
void _allreduce_non_tensor_model_parallel_grads(std::span<const ParamRef> params,
                                                const parallel::TensorParallelGroup& group);

}  // namespace mgfl::distributed
