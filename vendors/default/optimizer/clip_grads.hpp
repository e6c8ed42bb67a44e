/// Gradient norm over a list of groups, as heterogeneous jobs need it.
/// Python: megatron/plugin/optimizer/clip_grads.py, get_grad_norm_fp32
#pragma once

#include "mgfl/parallel/staging.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

/// The scalar is reduced over each group in turn, in the list's order, from the group before; an empty list
/// leaves it local. Together the groups carry every rank's part to every rank once (e.g. within a node, then
/// across nodes); docs/override.md tells which lists do. The scalar is staged through the memory of the
/// device that a group names.
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::default_>
    : overrides<targets::get_grad_norm_fp32, vendors::default_> {
  template <parallel::Communicator C>
  static double call(std::span<const Tensor> grads_for_norm, double norm_type,
                     const parallel::GroupList<C>& grad_stats_parallel_group) {
    double total = optimizer::local_norm_power(grads_for_norm, norm_type);
    for (C* group : grad_stats_parallel_group)
      total = optimizer::all_reduce_scalar(total, [&](Tensor& scalar) {
        parallel::all_reduce_staged(scalar, optimizer::norm_reduce_op(norm_type), *group);
      });
    return optimizer::norm_from_power(total, norm_type);
  }
};

}  // namespace mgfl
