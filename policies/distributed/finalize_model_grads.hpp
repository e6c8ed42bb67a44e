/// The sum of a tied word embedding's gradient over pipeline stages that this build's vendor provides.
/// Python: megatron/core/distributed/finalize_model_grads.py
#pragma once

#include <utility>

#include "mgfl/override/dispatch.hpp"
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

}  // namespace mgfl::distributed
