/// Where gradients are reduced over data-parallel ranks: what a chip may want otherwise.
/// Python: megatron/core/distributed/param_and_grad_buffer.py
#pragma once

#include <c10/core/Stream.h>

#include <optional>

#include "mgfl/override/dispatch.hpp"
#include "policies/distributed/param_and_grad_buffer_decl.hpp"

namespace mgfl::distributed {

/// See implementation<targets::get_communication_stream, vendors::original>.
inline c10::Stream _get_communication_stream(const CommunicationStreams& streams) {
  return dispatch<targets::get_communication_stream>(streams);
}

/// See implementation<targets::gradient_reduce_preprocessing, vendors::original>.
inline ReduceOp gradient_reduce_preprocessing(Tensor& grad_data, std::optional<double> scaling_factor,
                                              int group_size) {
  return dispatch<targets::gradient_reduce_preprocessing>(grad_data, scaling_factor, group_size);
}

}  // namespace mgfl::distributed
