/// The optimizer of the shipped engines: AdamW on flat shards, or SGD where the config says so.
// Mirrors torch.optim.AdamW, and the choice by OptimizerConfig.optimizer in megatron.core.optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "policies/optimizer/flat_optimizer.hpp"
#include "policies/optimizer/sgd.hpp"

namespace mgfl::optimizer {

/// State and update of AdamW for a rank's part of the flat buffers. With OptimizerKind::sgd it hands
/// everything to an Sgd: the choice is data, so that engines are not compiled once an optimizer.
class AdamW {
 public:
  AdamW(const ParamBuffer& buffer, const OptimizerConfig& config);

  /// One update of every segment with its group's lr and weight decay; gradients are multiplied by grad_scale
  /// first. Rounds the new main weights to the model's dtype where that is another.
  void step(Shard& shard, const std::vector<ParamGroup>& groups, double grad_scale);

  void to(c10::DeviceType device);

  static std::vector<ParamGroup> param_groups(const OptimizerConfig& config) {
    return param_groups_of(config);
  }

  OptimizerKind kind() const { return config_.optimizer; }

  /// What a checkpoint keeps beside weights and `updates`, under torch's names: each as the buffer's
  /// main_params.
  std::vector<std::pair<const char*, Tensor>> states() const;

  Tensor exp_avg, exp_avg_sq;  // as the buffer's main_params; undefined with sgd
  std::optional<Sgd> sgd;
  std::int64_t updates = 0;  // real updates so far: Adam's step number

 private:
  OptimizerConfig config_;
  std::vector<Segment> segments_;
};

static_assert(FlatOptimizer<AdamW>);

}  // namespace mgfl::optimizer
