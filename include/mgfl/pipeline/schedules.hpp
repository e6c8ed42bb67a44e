/// The order in which a rank runs its micro-batches' passes.
/// Mirrors megatron.core.pipeline_parallel.schedules.
#pragma once

#include <cstdint>

namespace mgfl::pipeline {

/// One pipeline stage: each micro-batch forward and at once backward, in order.
struct ForwardBackwardNoPipelining {
  /// forward_step(i), backward_step(i) for i in [0, num_microbatches); no backward where forward_only.
  template <class ForwardStep, class BackwardStep>
  void operator()(std::int64_t num_microbatches, ForwardStep&& forward_step, BackwardStep&& backward_step,
                  bool forward_only) const {
    for (std::int64_t i = 0; i < num_microbatches; ++i) {
      forward_step(i);
      if (!forward_only) backward_step(i);
    }
  }
};

/// The schedule for so many pipeline stages.
template <int PipelineStages>
constexpr auto get_forward_backward_func() {
  static_assert(PipelineStages == 1, "mgfl: this version has no pipeline schedule; use Pp<1>.");
  return ForwardBackwardNoPipelining{};
}

}  // namespace mgfl::pipeline
