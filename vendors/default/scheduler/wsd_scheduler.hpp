/// Warmup-Stable-Decay in place of the cosine.
/// Python: megatron/plugin/optimizer/lr_scheduler.py, WSDScheduler
#pragma once

#include "policies/scheduler/cosine_annealing_lr_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

namespace scheduler {

/// Linear warm-up from 0 over warmup_steps, then 1 until 0.9 max_steps, then halved every 0.1 max_steps,
/// never below min_lr.
class WSDScheduler : public original::CosineAnnealingLR {
 public:
  /// Arguments as the original's; UserError for warmup_steps < 0 too.
  WSDScheduler(optimizer::Optimizer& optimizer, std::int64_t max_steps, double min_lr = 0.0,
               std::int64_t warmup_steps = 1000);

  /// Writes the rate of the current step into every parameter group, then counts the step.
  void step();

 private:
  std::int64_t warmup_steps_;
};

}  // namespace scheduler

template <>
struct implementation<targets::CosineAnnealingLR, vendors::default_>
    : overrides<targets::CosineAnnealingLR, vendors::default_> {
  using type = scheduler::WSDScheduler;
};

}  // namespace mgfl
