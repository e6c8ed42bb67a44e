#include "vendors/default/scheduler/wsd_scheduler.hpp"

#include <algorithm>
#include <cmath>

#include "mgfl/base/error.hpp"

namespace mgfl::scheduler {

WSDScheduler::WSDScheduler(optimizer::Optimizer& optimizer, std::int64_t max_steps, double min_lr,
                           std::int64_t warmup_steps)
    : original::CosineAnnealingLR(optimizer, max_steps, min_lr), warmup_steps_(warmup_steps) {
  check_user(warmup_steps >= 0, "WSDScheduler: warmup_steps is ", warmup_steps,
             "; give 0 for no warm-up, or a positive number");
}

void WSDScheduler::step() {
  const auto step = static_cast<double>(current_step_), max_steps = static_cast<double>(max_steps_);
  double lr = 1.0;
  if (current_step_ < warmup_steps_)
    lr = step / static_cast<double>(warmup_steps_);
  else if (step >= max_steps * 0.9)
    lr = std::max(min_lr_, std::pow(0.5, (step - max_steps * 0.9) / (max_steps * 0.1)));
  set_lr(lr);
  ++current_step_;
}

}  // namespace mgfl::scheduler
