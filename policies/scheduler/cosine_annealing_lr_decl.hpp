/// The original CosineAnnealingLR; vendors that replace the class derive from it.
/// Python: megatron/core/optimizer/lr_scheduler.py, CosineAnnealingLR
#pragma once

#include <cstdint>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "mgfl/policy/optimizer_base.hpp"

namespace mgfl {

namespace scheduler::original {

/// Sets an absolute learning rate: min_lr + 0.5 (1 + cos(pi step / max_steps)), from min_lr + 1 at step 0 to
/// min_lr at max_steps (and up again afterwards: the cosine goes on). Borrows the optimizer. Not virtual:
/// `step()` through a reference to this class is this class's, whatever the vendor; hold the public name
/// scheduler::CosineAnnealingLR.
class CosineAnnealingLR {
 public:
  /// UserError unless max_steps > 0, 0 <= min_lr <= 1 and the optimizer has a parameter group.
  CosineAnnealingLR(optimizer::Optimizer& optimizer, std::int64_t max_steps, double min_lr = 0.0);

  /// Writes the rate of the current step into every parameter group, then counts the step.
  void step();

  /// The rate of the first parameter group.
  double get_lr() const;

  /// Steps taken so far; setting it resumes there.
  std::int64_t current_step() const { return current_step_; }
  void set_current_step(std::int64_t step);

 protected:
  void set_lr(double lr);

  optimizer::Optimizer& optimizer_;
  std::int64_t max_steps_;
  double min_lr_;
  std::int64_t current_step_ = 0;
};

}  // namespace scheduler::original

template <>
struct implementation<targets::CosineAnnealingLR, vendors::original> {
  using type = scheduler::original::CosineAnnealingLR;
  using constructor =
      list<void(optimizer::Optimizer&, std::int64_t), void(optimizer::Optimizer&, std::int64_t, double)>;
};

}  // namespace mgfl
