/// The gradient norm that this build's vendor provides.
/// Python: megatron/core/optimizer/clip_grads.py
#pragma once

#include <concepts>
#include <utility>

#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"
#include "policies/parallel/self.hpp"

namespace mgfl::optimizer {

static_assert(family_is_checked<targets::get_grad_norm_fp32>);

/// One gradient, or a std::span or std::vector of them.
template <class Grads>
concept GradsForNorm = std::convertible_to<const Grads&, const Tensor&> ||
    std::convertible_to<const Grads&, std::span<const Tensor>>;

/// Norm of the gradients of all ranks of the groups, see implementation<targets::get_grad_norm_fp32,
/// vendors::original>. `grad_stats_parallel_group`: one group, or what else makes a GroupList; the original
/// takes at most one, vendor default a list.
template <GradsForNorm Grads, parallel::ListsGroups Groups>
double get_grad_norm_fp32(const Grads& grads_for_norm, double norm_type, Groups&& grad_stats_parallel_group) {
  const parallel::GroupList groups(std::forward<Groups>(grad_stats_parallel_group));
  using C = typename decltype(groups)::communicator_type;
  if constexpr (std::convertible_to<const Grads&, const Tensor&>)
    return dispatch_family<targets::get_grad_norm_fp32, C>(std::span<const Tensor>(&grads_for_norm, 1),
                                                           norm_type, groups);
  else
    return dispatch_family<targets::get_grad_norm_fp32, C>(grads_for_norm, norm_type, groups);
}

/// Norm of this rank's gradients alone.
template <GradsForNorm Grads>
double get_grad_norm_fp32(const Grads& grads_for_norm, double norm_type = 2.0) {
  return get_grad_norm_fp32(grads_for_norm, norm_type, parallel::GroupList<parallel::Self>());
}

}  // namespace mgfl::optimizer
