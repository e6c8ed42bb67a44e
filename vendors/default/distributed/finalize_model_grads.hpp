/// The sum of a tied word embedding's gradient over a list of groups, or of a rank's own rows alone.
/// Python: megatron/plugin/distributed/finalize_model_grads.py, _allreduce_embedding_grad
#pragma once

#include <cstddef>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/staging.hpp"
#include "policies/distributed/finalize_model_grads_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

namespace distributed {

/// Calls `all_reduce(i, rows)` for each of `groups` groups in order, on the rows that group i sums. All rows:
/// each group finds this rank's own gradient, not the sum over the group before. Partial: group i finds part
/// i of `groups` equal parts of this rank's own rows. UserError where rows do not divide evenly.
void reduce_embedding_rows(Tensor& main_grad, std::size_t groups, const EmbeddingGradRows& rows,
                           function_ref<void(std::size_t, Tensor&)> all_reduce);

}  // namespace distributed

/// As the original, and over a list: each group holds this rank and one counterpart on the other stage, and a
/// rank has several counterparts where the other stage has more data-parallel ranks. Their gradients are
/// equal after the data-parallel reduction, so each sum starts from this rank's own gradient. Where rows are
/// partial, data-parallel rank r of n with g groups meets ranks r g to r g + g - 1 of n g, in this order,
/// each on the rows that that one owns. The gradient is staged through the memory of the device that a group
/// names.
template <>
struct implementation<targets::allreduce_embedding_grad, vendors::default_>
    : overrides<targets::allreduce_embedding_grad, vendors::default_> {
  template <parallel::Communicator C>
  static void call(Tensor& main_grad, const parallel::GroupList<C>& embd_group,
                   const distributed::EmbeddingGradRows& rows) {
    distributed::reduce_embedding_rows(main_grad, embd_group.size(), rows,
                                       [&](std::size_t group, Tensor& part) {
                                         parallel::all_reduce_staged(part, ReduceOp::sum, embd_group[group]);
                                       });
  }
};

}  // namespace mgfl
