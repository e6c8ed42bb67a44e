/// The original of the gradient norm, and the pieces of which vendors build theirs.
/// Python: megatron/core/optimizer/clip_grads.py, get_grad_norm_fp32
#pragma once

#include <span>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/communicator_archetype.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

namespace optimizer {

/// Sum of |g|^p over all elements of local gradients (fp64, fp32, bf16 or fp16), or the largest |g| for p =
/// infinity, where NaN counts as infinity. Summed in double, one sum a tensor, added in order: the same bits
/// for any number of threads. UserError unless p > 0; 0 for an empty list and for tensors without elements.
double local_norm_power(const std::span<const Tensor>& grads, double norm_type);

/// `value` after `all_reduce` (given a contiguous fp64 tensor of one element, on the CPU as the gradients)
/// has gone over it.
double all_reduce_scalar(double value, function_ref<void(Tensor&)> all_reduce);

/// The norm: total^(1/p), or `total` itself for p = infinity.
double norm_from_power(double total, double norm_type);

/// How parts of a norm combine over ranks: the sum, or for p = infinity the maximum.
ReduceOp norm_reduce_op(double norm_type);

}  // namespace optimizer

/// Norm of the gradients of all ranks of one group, in double; of this rank's alone for an empty list.
/// `grads_for_norm`: local gradients, each logical parameter counted on one rank of the group alone;
/// `norm_type`: 2, any p > 0, or infinity. Collective over the group; every rank gets the same value, which
/// is not finite where any gradient holds NaN or infinity. UserError for several groups.
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::original> {
  using archetype = parallel::communicator_archetype;

  template <parallel::Communicator C>
  static double call(std::span<const Tensor> grads_for_norm, double norm_type,
                     const parallel::GroupList<C>& grad_stats_parallel_group) {
    C* const group = parallel::one_group(grad_stats_parallel_group, "get_grad_norm_fp32");
    double total = optimizer::local_norm_power(grads_for_norm, norm_type);
    if (group)
      total = optimizer::all_reduce_scalar(
          total, [&](Tensor& scalar) { group->all_reduce(scalar, optimizer::norm_reduce_op(norm_type)); });
    return optimizer::norm_from_power(total, norm_type);
  }
};

}  // namespace mgfl
