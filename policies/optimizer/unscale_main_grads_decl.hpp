/// The original of MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan, and what it may ask of
/// `self`. Python: megatron/core/optimizer/optimizer.py,
/// MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan
#pragma once

#include <concepts>
#include <span>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/communicator_archetype.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "mgfl/tensor/fwd.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"

namespace mgfl {

namespace optimizer {

/// What an optimizer offers to the bodies of this method; `communicator_type` is the type of its groups.
template <class Self>
concept UnscalesMainGrads = parallel::Communicator<typename Self::communicator_type> && requires(Self& self) {
  { self.is_stub_optimizer() } -> std::same_as<bool>;  // true on a rank that holds no parameters
  { self._collect_main_grad_data_for_unscaling() } -> std::same_as<std::span<const Tensor>>;
  { self.inv_scale() } -> std::same_as<double>;  // 1 / loss scale
  {
    self.get_grad_stats_parallel_group()
    } -> std::same_as<const parallel::GroupList<typename Self::communicator_type>&>;
};

/// Stands for every such optimizer where signatures are compared; nobody ever calls it.
struct mixed_precision_optimizer_archetype {
  using communicator_type = parallel::communicator_archetype;
  bool is_stub_optimizer();
  std::span<const Tensor> _collect_main_grad_data_for_unscaling();
  double inv_scale();
  const parallel::GroupList<communicator_type>& get_grad_stats_parallel_group();
};

/// Multiplies main gradients (fp64, fp32, bf16 or fp16, contiguous) by `inv_scale`, in place; true where one
/// of them holds NaN or infinity before or after.
bool unscale_and_find_nonfinite(const std::span<const Tensor>& main_grads, double inv_scale);

}  // namespace optimizer

/// Unscales the main gradients of `self` in place; true on every rank of its one group where any rank found
/// NaN or infinity, without a group where this rank did. UserError for several groups.
template <>
struct implementation<targets::unscale_main_grads, vendors::original> {
  using self = optimizer::mixed_precision_optimizer_archetype;
  using archetype = self;

  template <optimizer::UnscalesMainGrads Self>
  static bool call(Self& self) {
    auto* const group =
        parallel::one_group(self.get_grad_stats_parallel_group(), "_unscale_main_grads_and_check_for_nan");
    const bool found_inf =
        !self.is_stub_optimizer() &&
        optimizer::unscale_and_find_nonfinite(self._collect_main_grad_data_for_unscaling(), self.inv_scale());
    if (!group) return found_inf;
    return optimizer::all_reduce_scalar(found_inf,
                                        [&](Tensor& flag) { group->all_reduce(flag, ReduceOp::max); }) > 0;
  }
};

}  // namespace mgfl
