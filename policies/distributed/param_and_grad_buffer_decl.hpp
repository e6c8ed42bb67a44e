/// The originals of what a chip may want otherwise where gradients are reduced: the stream, and the scale.
/// Python: megatron/core/distributed/param_and_grad_buffer.py, and gradient_reduce_preprocessing of
/// megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
#pragma once

#include <optional>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/distributed.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace c10 {
class Stream;
}

namespace mgfl {

namespace distributed {

/// Where a communication can run: on its group's own stream, or on the one that its caller computes on, of
/// which a graph may be captured at the moment. Borrows both.
struct CommunicationStreams {
  const c10::Stream& own;
  const c10::Stream& current;
  bool capturing = false;
};

}  // namespace distributed

/// The stream for one communication. The original takes the group's own, so that it runs beside computation.
template <>
struct implementation<targets::get_communication_stream, vendors::original> {
  static c10::Stream call(const distributed::CommunicationStreams& streams);
};

/// How the gradients `grad_data` are to be reduced over `group_size` ranks, so that the result is their sum
/// times `scaling_factor`; scales them before, in place, where the reduction itself cannot. Without a factor
/// they are summed as they are: the engine divides its sums once, later. The original leaves an average to
/// the reduction.
template <>
struct implementation<targets::gradient_reduce_preprocessing, vendors::original> {
  static ReduceOp call(Tensor& grad_data, std::optional<double> scaling_factor, int group_size);
};

}  // namespace mgfl
