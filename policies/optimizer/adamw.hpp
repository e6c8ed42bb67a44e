/// AdamW on flat shards, with Megatron's rule for what decays.
// Mirrors torch.optim.AdamW.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/optimizer/flat_optimizer.hpp"

namespace mgfl::optimizer {

/// State and update of AdamW for a rank's part of the flat buffers.
class AdamW {
 public:
  AdamW(const ParamBuffer& buffer, const OptimizerConfig& config);

  /// One update of every segment with its group's lr and weight decay; gradients are multiplied by grad_scale
  /// first. Rounds the new main weights to the model's dtype where that is another.
  void step(Shard& shard, const std::vector<ParamGroup>& groups, double grad_scale);

  void to(c10::DeviceType device);

  /// Group 0 decays (matrices, embeddings), group 1 does not (norms, biases).
  static std::vector<ParamGroup> param_groups(const OptimizerConfig& config) { return decay_groups(config); }

  Tensor exp_avg, exp_avg_sq;  // as the buffer's main_params
  std::int64_t updates = 0;    // real updates so far: Adam's step number

 private:
  OptimizerConfig config_;
  std::vector<Segment> segments_;
};

static_assert(FlatOptimizer<AdamW>);

}  // namespace mgfl::optimizer
