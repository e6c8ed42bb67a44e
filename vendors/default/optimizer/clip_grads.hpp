/// Gradient norm over a list of groups, as heterogeneous jobs need it.
/// Python: megatron/plugin/optimizer/clip_grads.py, get_grad_norm_fp32
#pragma once

#include "policies/optimizer/clip_grads_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

/// The scalar is reduced over each group in turn, in the list's order; an empty list leaves it local. The
/// groups of one rank partition the ranks (e.g. within a node, then across nodes), so that no rank is counted
/// twice. The scalar stays in CPU memory.
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::default_>
    : overrides<targets::get_grad_norm_fp32, vendors::default_> {
  template <parallel::Communicator C>
  static double call(std::span<const Tensor> grads_for_norm, double norm_type,
                     std::span<C* const> grad_stats_parallel_group) {
    double total = optimizer::local_norm_power(grads_for_norm, norm_type);
    for (C* group : grad_stats_parallel_group)
      total = optimizer::all_reduce_scalar(
          total, [&](Tensor& scalar) { group->all_reduce(scalar, optimizer::norm_reduce_op(norm_type)); });
    return optimizer::norm_from_power(total, norm_type);
  }
};

}  // namespace mgfl
