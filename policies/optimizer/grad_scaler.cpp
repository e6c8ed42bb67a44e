#include "policies/optimizer/grad_scaler.hpp"

#include <algorithm>
#include <cmath>

#include "mgfl/base/error.hpp"

namespace mgfl::optimizer {
namespace {

float checked_scale(const char* name, double value) {
  const auto scale = static_cast<float>(value);
  check_user(std::isfinite(scale) && scale > 0 && std::isfinite(1.0f / scale), "the ", name, " is ", value,
             "; give a positive number within fp32's range.");
  return scale;
}

}  // namespace

void check_state(const GradScalerState& saved) {
  checked_scale("checkpoint's loss scale", saved.scale);
  check_user(saved.growth_tracker >= 0, "the checkpoint's loss scaler has counted ", saved.growth_tracker,
             " finite steps; the checkpoint is damaged.");
}

DynamicGradScaler::DynamicGradScaler(const DynamicGradScalerConfig& config)
    : config_(config),
      state_{checked_scale("initial loss scale", config.initial_scale), 0, config.hysteresis} {
  checked_scale("minimum loss scale", config.min_scale);
  check_user(config.min_scale <= config.initial_scale, "the minimum loss scale ", config.min_scale,
             " is above the initial one ", config.initial_scale, "; lower the minimum.");
  check_user(std::isfinite(config.growth_factor) && config.growth_factor > 1,
             "the loss scale's growth factor is ", config.growth_factor, "; give a number above 1.");
  check_user(config.backoff_factor > 0 && config.backoff_factor < 1, "the loss scale's backoff factor is ",
             config.backoff_factor, "; give a number between 0 and 1.");
  check_user(config.growth_interval > 0, "the loss-scale window is ", config.growth_interval,
             " steps; give 1 or more.");
  check_user(config.hysteresis > 0, "the loss scale's hysteresis is ", config.hysteresis,
             "; give 1 or more.");
}

void DynamicGradScaler::update(bool found_inf) {
  if (found_inf) {
    state_.growth_tracker = 0;
    --state_.hysteresis_tracker;
    if (state_.hysteresis_tracker <= 0)
      state_.scale = std::max(state_.scale * static_cast<float>(config_.backoff_factor),
                              static_cast<float>(config_.min_scale));
    return;
  }
  if (++state_.growth_tracker < config_.growth_interval) return;
  state_.growth_tracker = 0;
  state_.hysteresis_tracker = config_.hysteresis;
  const float grown = state_.scale * static_cast<float>(config_.growth_factor);
  // Gradients that are all zero never overflow: without this bound their scale would reach infinity, and 0 x
  // inf is NaN.
  if (std::isfinite(grown)) state_.scale = grown;
}

void DynamicGradScaler::load_state(const GradScalerState& saved) {
  check_state(saved);
  if (!saved.is_dynamic) return;
  state_ = saved;
  state_.scale = std::max(saved.scale, static_cast<float>(config_.min_scale));
}

ConstantGradScaler::ConstantGradScaler(double scale) : scale_(checked_scale("loss scale", scale)) {}

}  // namespace mgfl::optimizer
