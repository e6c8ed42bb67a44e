/// Gradient norm for musa.
/// Python: megatron/plugin/optimizer/clip_grads.py, get_grad_norm_fp32_musa
#pragma once

#include "policies/optimizer/clip_grads_decl.hpp"
#include "vendors/default/optimizer/clip_grads.hpp"
#include "vendors/musa/manifest.hpp"

namespace mgfl {

namespace optimizer {

/// The body of vendor default, which stages the scalar through the memory that each group names: the chip's
/// groups of backend "cpu:gloo" say the CPU.
template <parallel::Communicator C>
double get_grad_norm_fp32_musa(std::span<const Tensor> grads_for_norm, double norm_type,
                               const parallel::GroupList<C>& grad_stats_parallel_group) {
  return implementation<targets::get_grad_norm_fp32, vendors::default_>::call<C>(grads_for_norm, norm_type,
                                                                                 grad_stats_parallel_group);
}

}  // namespace optimizer

template <>
struct implementation<targets::get_grad_norm_fp32, vendors::musa>
    : overrides<targets::get_grad_norm_fp32, vendors::musa> {
  template <parallel::Communicator C>
  static double call(std::span<const Tensor> grads_for_norm, double norm_type,
                     const parallel::GroupList<C>& grad_stats_parallel_group) {
    return optimizer::get_grad_norm_fp32_musa<C>(grads_for_norm, norm_type, grad_stats_parallel_group);
  }
};

}  // namespace mgfl
