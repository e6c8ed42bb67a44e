/// Unscaling with a check over a list of groups.
/// Python: megatron/plugin/optimizer/optimizer.py, _unscale_main_grads_and_check_for_nan
#pragma once

#include "mgfl/parallel/staging.hpp"
#include "policies/optimizer/unscale_main_grads_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

/// As the original, but the flag goes over each group in turn, through the memory of the device that a group
/// names.
template <>
struct implementation<targets::unscale_main_grads, vendors::default_>
    : overrides<targets::unscale_main_grads, vendors::default_> {
  template <optimizer::UnscalesMainGrads Self>
  static bool call(Self& self) {
    double found_inf = 0;
    if (!self.is_stub_optimizer() &&
        optimizer::unscale_and_find_nonfinite(self._collect_main_grad_data_for_unscaling(), self.inv_scale()))
      found_inf = 1;
    for (auto* group : self.get_grad_stats_parallel_group())
      found_inf = optimizer::all_reduce_scalar(
          found_inf, [&](Tensor& flag) { parallel::all_reduce_staged(flag, ReduceOp::max, *group); });
    return found_inf > 0;
  }
};

}  // namespace mgfl
