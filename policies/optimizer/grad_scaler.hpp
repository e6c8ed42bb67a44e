/// Loss scales for fp16 training: one that adapts itself, one that stays.
// Mirrors megatron.core.optimizer.grad_scaler.DynamicGradScaler and ConstantGradScaler.
#pragma once

#include <cstdint>

namespace mgfl::optimizer {

/// What a checkpoint keeps of a scaler.
struct GradScalerState {
  float scale = 1;
  std::int64_t growth_tracker = 0;      // finite steps since the last change
  std::int64_t hysteresis_tracker = 0;  // overflows left before the scale shrinks; <= 0: each one shrinks it
  bool is_dynamic = true;
};

/// UserError where saved numbers cannot be a scaler's.
void check_state(const GradScalerState& saved);

/// Megatron's names and defaults.
struct DynamicGradScalerConfig {
  double initial_scale = 4294967296.0;
  double min_scale = 1.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 1000;  // finite steps until the scale grows and the hysteresis is restored
  std::int64_t hysteresis = 2;          // overflows until the scale shrinks
};

/// A scale that shrinks at overflows and grows again after a run of finite steps. Its numbers are fp32, as
/// Megatron's.
class DynamicGradScaler {
 public:
  /// UserError for factors, scales or lengths out of range, naming the value.
  explicit DynamicGradScaler(const DynamicGradScalerConfig& config = {});

  float scale() const { return state_.scale; }
  float inv_scale() const { return static_cast<float>(1.0 / static_cast<double>(state_.scale)); }
  bool can_shrink() const { return state_.scale > static_cast<float>(config_.min_scale); }

  /// Call once a step, after the gradients of all parameters on all ranks have been looked at.
  void update(bool found_inf);

  const GradScalerState& state() const { return state_; }

  /// Goes on where a dynamic scaler stopped, not below this one's minimum; a constant scaler's number says
  /// nothing of what gradients bear. UserError as check_state.
  void load_state(const GradScalerState& saved);

 private:
  DynamicGradScalerConfig config_;
  GradScalerState state_;
};

/// A scale that never changes.
class ConstantGradScaler {
 public:
  /// UserError unless the scale is finite and positive.
  explicit ConstantGradScaler(double scale);

  float scale() const { return scale_; }
  float inv_scale() const { return static_cast<float>(1.0 / static_cast<double>(scale_)); }
  bool can_shrink() const { return false; }
  void update(bool found_inf) {}

  GradScalerState state() const { return {scale_, 0, 0, false}; }

  /// Keeps the scale that this run was given, as Megatron does.
  void load_state(const GradScalerState& saved) {}

 private:
  float scale_;
};

}  // namespace mgfl::optimizer
