#include "warmup_lr.hpp"

#include <algorithm>

void mgfl::acme::WarmupLR::step() {
  const double warmup = std::max(1.0, 0.1 * static_cast<double>(max_steps_));
  const double risen = std::min(1.0, static_cast<double>(current_step_) / warmup);
  set_lr(min_lr_ + (1.0 - min_lr_) * risen);
  ++current_step_;
}
