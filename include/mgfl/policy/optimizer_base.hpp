/// What a learning-rate scheduler sees of an optimizer: its parameter groups.
#pragma once

#include <optional>
#include <vector>

namespace mgfl::optimizer {

/// Parameters that share a learning rate and a weight decay.
struct ParamGroup {
  double lr = 0;
  double weight_decay = 0;
  double wd_mult = 1.0;                  // multiplies the scheduler's weight decay; 0 for norms and biases
  std::optional<double> max_lr, min_lr;  // in place of the scheduler's own
};

/// Base of every optimizer. Schedulers write `lr` and `weight_decay` of its groups.
struct Optimizer {
  std::vector<ParamGroup> param_groups;
  double lr = 0, min_lr = 0, weight_decay = 0;  // OptimizerConfig's: for schedules that give none
};

}  // namespace mgfl::optimizer
