#include "policies/optimizer/skipped_steps.hpp"

#include "mgfl/base/error.hpp"

namespace mgfl::optimizer {

void SkippedSteps::not_finite(double loss_scale) {
  const bool last = is_last();
  check_run(
      !last, "the gradients of ", in_a_row_, " steps in a row were not finite, at a loss scale of ",
      loss_scale,
      " that does not shrink further, so no step was made; lower the learning rate, look for bad samples, "
      "or go on from the last good checkpoint in a precision of more range (bf16, fp32).");
}

void SkippedSteps::too_long(double grad_norm, double threshold) {
  const bool last = is_last();
  check_run(!last, "the gradient norms of ", in_a_row_, " steps in a row, the last one ", grad_norm,
            ", were above grad_norm_skip_threshold ", threshold,
            " or overflowed, so no step was made; raise the threshold, or lower the learning rate.");
}

}  // namespace mgfl::optimizer
