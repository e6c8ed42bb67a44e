/// Two more schedules of the learning rate: warmup-stable-decay, and the stages of StableLM 2.
/// Python: megatron/plugin/optimizer_param_scheduler.py, get_lr
#pragma once

#include "policies/scheduler/get_lr_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

/// As the original for Megatron's own styles. For the others, at position t, with warm-up W and length D of
/// the schedule: the original's warm-up while t <= W, min_lr where t > D, and between,
///
/// - warmup_stable_decay, with S = round(10 (D - W) / 11) and T = D - W - S (at least 1):
///   max_lr while t < S, then max_lr x 0.5^((t - S) / T). S counts from position 0, as upstream's does.
/// - stablelm2_scheduler_config, with C = cosine_samples, R = rsqrt_samples, E = min(D, R + decay_samples):
///   t <= C: cosine_max_lr x (0.1 + 0.45 (1 + cos(2 pi t / cosine_period_samples)));
///   t <= R: alpha / sqrt(t / global_batch_size + beta), which is r at R;
///   then, without decay_samples, r (1 - (t - R) / (D - R)), else min_lr + (1 - (t - R) / (E - R)) (r -
///   min_lr) while t <= E, and min_lr. Upstream takes for r the rate of the last step at or before R; here it
///   depends on the position alone, so that a resumed run goes on as the first one would have.
template <>
struct implementation<targets::get_lr, vendors::default_> : overrides<targets::get_lr, vendors::default_> {
  static double call(const scheduler::OptimizerParamScheduler& self, const optimizer::ParamGroup& group);
};

}  // namespace mgfl
