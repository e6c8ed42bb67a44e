/// The original of the sum of a tied word embedding's gradient over pipeline stages.
/// Python: megatron/core/distributed/finalize_model_grads.py, _allreduce_embedding_grad
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/distributed.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/communicator_archetype.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

namespace distributed {

/// The rows that a rank needs the sum of. With a distributed optimizer these are its own: part
/// data_parallel_rank of data_parallel_size equal parts.
struct EmbeddingGradRows {
  bool use_partial_reduce_for_shared_embedding = false;  // false: all rows
  int data_parallel_rank = 0, data_parallel_size = 1;
};

}  // namespace distributed

/// Sums `main_grad` [rows of this tp rank, hidden], in place, over the ranks of one group: the first and the
/// last pipeline stage's, which both hold the tied weight. Call it after the reduction over data-parallel
/// ranks. Nothing to do for an empty list. Sums all rows, whichever are asked for. Collective over the group;
/// UserError for several groups.
template <>
struct implementation<targets::allreduce_embedding_grad, vendors::original> {
  using archetype = parallel::communicator_archetype;

  template <parallel::Communicator C>
  static void call(Tensor& main_grad, const parallel::GroupList<C>& embd_group,
                   const distributed::EmbeddingGradRows&) {
    if (C* group = parallel::one_group(embd_group, "_allreduce_embedding_grad"))
      group->all_reduce(main_grad, ReduceOp::sum);
  }
};

}  // namespace mgfl
