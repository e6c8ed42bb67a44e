/// The gradient norm that this build's vendor provides.
/// Python: megatron/core/optimizer/clip_grads.py
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"

namespace mgfl::optimizer {

static_assert(family_is_checked<targets::get_grad_norm_fp32>);

/// Norm of the gradients of all ranks of the group, see implementation<targets::get_grad_norm_fp32,
/// vendors::original>. The original takes one group, the default vendor a list.
template <parallel::Communicator C>
double get_grad_norm_fp32(std::span<const Tensor> grads_for_norm, double norm_type,
                          std::span<C* const> grad_stats_parallel_group) {
  return dispatch_family<targets::get_grad_norm_fp32, C>(grads_for_norm, norm_type,
                                                         grad_stats_parallel_group);
}

/// The same over one group; norm_type defaults to 2.
template <parallel::Communicator C>
double get_grad_norm_fp32(std::span<const Tensor> grads_for_norm, C& grad_stats_parallel_group,
                          double norm_type = 2.0) {
  C* const group = &grad_stats_parallel_group;
  return get_grad_norm_fp32<C>(grads_for_norm, norm_type, std::span<C* const>(&group, 1));
}

}  // namespace mgfl::optimizer
