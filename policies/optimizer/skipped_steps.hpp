/// Ends a run in which one step after the other is skipped.
#pragma once

#include <cstdint>

namespace mgfl::optimizer {

/// Counts skipped steps in a row. Every rank counts the same, since steps are skipped on all or on none.
class SkippedSteps {
 public:
  /// `most`: RunError at so many; 0: never.
  explicit SkippedSteps(std::int64_t most) : most_(most) {}

  /// A step was made, or skipped while the loss scale could still answer by shrinking.
  void reset() { in_a_row_ = 0; }

  /// RunError, naming the count and what to try, where this was one too many.
  void not_finite(double loss_scale);
  void too_long(double grad_norm, double threshold);

 private:
  bool is_last() { return ++in_a_row_ >= most_ && most_ > 0; }

  std::int64_t most_, in_a_row_ = 0;
};

}  // namespace mgfl::optimizer
