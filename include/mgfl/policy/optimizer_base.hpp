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
  std::optional<double> max_lr, min_lr;  // replace the scheduler's own
};

/// Base of every optimizer. Schedulers write `lr` and `weight_decay` of its groups.
struct Optimizer {
  std::vector<ParamGroup> param_groups;
};

}  // namespace mgfl::optimizer
