#include "policies/scheduler/cosine_annealing_lr_decl.hpp"

#include <cmath>
#include <numbers>

#include "mgfl/base/error.hpp"

namespace mgfl::scheduler::original {

CosineAnnealingLR::CosineAnnealingLR(optimizer::Optimizer& optimizer, std::int64_t max_steps, double min_lr)
    : optimizer_(optimizer), max_steps_(max_steps), min_lr_(min_lr) {
  check_user(max_steps > 0, "CosineAnnealingLR: max_steps is ", max_steps,
             "; give the number of steps, at least 1");
  check_user(min_lr >= 0 && min_lr <= 1, "CosineAnnealingLR: min_lr is ", min_lr,
             "; this scheduler sets absolute rates around 1, give one between 0 and 1");
  check_user(!optimizer.param_groups.empty(),
             "CosineAnnealingLR: the optimizer has no parameter group; make the scheduler after the groups");
}

void CosineAnnealingLR::step() {
  const double progress = static_cast<double>(current_step_) / static_cast<double>(max_steps_);
  set_lr(min_lr_ + 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  ++current_step_;
}

double CosineAnnealingLR::get_lr() const { return optimizer_.param_groups.front().lr; }

void CosineAnnealingLR::set_current_step(std::int64_t step) {
  check_user(step >= 0, "CosineAnnealingLR: cannot resume at step ", step, "; steps count from 0");
  current_step_ = step;
}

void CosineAnnealingLR::set_lr(double lr) {
  for (auto& group : optimizer_.param_groups) group.lr = lr;
}

}  // namespace mgfl::scheduler::original
