/// The original of OptimizerParamScheduler.get_lr. Python: megatron/core/optimizer_param_scheduler.py,
/// OptimizerParamScheduler.get_lr
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"

namespace mgfl {

/// Learning rate of a group at the schedule's position: Megatron's warm-up and its five ways down. UserError
/// for the schedules that only vendor default's body knows.
template <>
struct implementation<targets::get_lr, vendors::original> {
  using self = const scheduler::OptimizerParamScheduler;
  static double call(const scheduler::OptimizerParamScheduler& self, const optimizer::ParamGroup& group);
};

}  // namespace mgfl
