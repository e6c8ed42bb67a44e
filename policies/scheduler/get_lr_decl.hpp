/// The original of OptimizerParamScheduler.get_lr. Python: megatron/core/optimizer_param_scheduler.py,
/// OptimizerParamScheduler.get_lr
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

namespace optimizer {
struct ParamGroup;
}
namespace scheduler {
class OptimizerParamScheduler;
}

/// Learning rate of a group at the schedule's position: Megatron's warm-up and its five ways down. UserError
/// for the schedules that only vendor default's body knows.
template <>
struct implementation<targets::get_lr, vendors::original> {
  using self = const scheduler::OptimizerParamScheduler;
  static double call(const scheduler::OptimizerParamScheduler& self, const optimizer::ParamGroup& group);
};

}  // namespace mgfl
