/// Names of the overridable things around the optimizer.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct get_grad_norm_fp32 : target<"mgfl.core.optimizer.clip_grads.get_grad_norm_fp32"> {};
struct unscale_main_grads
    : target<"mgfl.core.optimizer.optimizer.MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan"> {
};
struct CosineAnnealingLR : target<"mgfl.core.optimizer.lr_scheduler.CosineAnnealingLR"> {};
struct get_lr : target<"mgfl.core.optimizer_param_scheduler.OptimizerParamScheduler.get_lr"> {};

using optimizer_targets = list<get_grad_norm_fp32, unscale_main_grads, CosineAnnealingLR, get_lr>;

}  // namespace mgfl::targets
