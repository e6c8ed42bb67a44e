/// SGD with momentum on flat shards.
// Mirrors torch.optim.SGD as megatron.core.optimizer makes it: no dampening, no Nesterov momentum.
#pragma once

#include <vector>

#include "policies/optimizer/flat_optimizer.hpp"

namespace mgfl::optimizer {

/// d = grad + weight_decay x weight; buffer = sgd_momentum x buffer + d; weight -= lr x buffer. The decay
/// goes into the momentum (AdamW's does not), and with a momentum of 0 there is no buffer.
class Sgd {
 public:
  Sgd(const ParamBuffer& buffer, const OptimizerConfig& config);

  /// One update of every segment with its group's lr and weight decay; gradients are multiplied by grad_scale
  /// first. Rounds the new main weights to the model's dtype where that is another.
  void step(Shard& shard, const std::vector<ParamGroup>& groups, double grad_scale);

  void to(c10::DeviceType device);

  static std::vector<ParamGroup> param_groups(const OptimizerConfig& config) {
    return param_groups_of(config);
  }

  Tensor momentum_buffer;  // as the buffer's main_params; undefined without momentum

 private:
  double momentum_;
  std::vector<Segment> segments_;
};

static_assert(FlatOptimizer<Sgd>);

}  // namespace mgfl::optimizer
