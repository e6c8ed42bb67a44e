#include "policies/distributed/param_and_grad_buffer_decl.hpp"

#include "mgfl/tensor/lean.hpp"

#include <c10/core/Stream.h>

namespace mgfl {

c10::Stream implementation<targets::get_communication_stream, vendors::original>::call(
    const distributed::CommunicationStreams& streams) {
  return streams.own;
}

ReduceOp implementation<targets::gradient_reduce_preprocessing, vendors::original>::call(
    Tensor& grad_data, std::optional<double> scaling_factor, int group_size) {
  if (!scaling_factor) return ReduceOp::sum;
  if (*scaling_factor == 1.0 / group_size) return ReduceOp::avg;
  grad_data.mul_(*scaling_factor);
  return ReduceOp::sum;
}

}  // namespace mgfl
