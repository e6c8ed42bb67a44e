#include "vendors/default/distributed/finalize_model_grads.hpp"

#include <cstdint>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::distributed {

namespace {

void reduce_own_rows(Tensor& main_grad, std::int64_t groups, const EmbeddingGradRows& rows,
                     function_ref<void(std::size_t, Tensor&)> all_reduce) {
  check_user(rows.data_parallel_rank >= 0 && rows.data_parallel_rank < rows.data_parallel_size,
             "_allreduce_embedding_grad: data-parallel rank ", rows.data_parallel_rank, " of ",
             rows.data_parallel_size, "; give a rank from 0 to the size - 1.");
  const std::int64_t parts = rows.data_parallel_size * groups, count = main_grad.size(0);
  check_user(count % parts == 0, "_allreduce_embedding_grad: the gradient's ", count,
             " rows are not divisible by data-parallel size ", rows.data_parallel_size, " x ", groups,
             " embedding groups = ", parts,
             "; pad the vocabulary, or switch use_partial_reduce_for_shared_embedding off.");
  for (std::int64_t group = 0; group < groups; ++group) {
    Tensor part =
        main_grad.narrow(0, count / parts * (rows.data_parallel_rank * groups + group), count / parts);
    all_reduce(static_cast<std::size_t>(group), part);
  }
}

}  // namespace

void reduce_embedding_rows(Tensor& main_grad, std::size_t groups, const EmbeddingGradRows& rows,
                           function_ref<void(std::size_t, Tensor&)> all_reduce) {
  if (groups == 0) return;
  if (rows.use_partial_reduce_for_shared_embedding)
    return reduce_own_rows(main_grad, static_cast<std::int64_t>(groups), rows, all_reduce);
  const Tensor own = groups > 1 ? main_grad.clone() : Tensor();
  for (std::size_t group = 0; group < groups; ++group) {
    if (group > 0) main_grad.copy_(own);
    all_reduce(group, main_grad);
  }
}

}  // namespace mgfl::distributed
