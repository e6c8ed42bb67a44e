/// Flat memory for all parameters of a rank: weights, main weights, main gradients.
// Mirrors megatron.core.distributed.param_and_grad_buffer._ParamAndGradBuffer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mgfl/parallel/param.hpp"

namespace mgfl::optimizer {

/// Every parameter's `value` and `main_grad` become views of these. Each parameter starts on a 64-element
/// border; the elements between are zero for ever.
struct ParamBuffer {
  std::vector<ParamRef> params;
  std::vector<std::int64_t> offsets;  // of each parameter
  std::int64_t numel = 0;
  Tensor values;       // [numel] model dtype
  Tensor main_params;  // [numel] main dtype; the same tensor as `values` where the dtypes agree; undefined:
                       // forward only
  Tensor main_grads;   // [numel] main dtype; undefined: forward only

  /// This parameter's part of any flat tensor, in the parameter's shape.
  Tensor view(const Tensor& flat, std::size_t param) const;
};

/// The parameters with their main weights as values.
struct MainParams {
  explicit MainParams(const ParamBuffer& buffer);
  std::vector<Tensor> values;
  std::vector<ParamRef> params;
};

/// Lays the parameters out and points their values at the buffer (contents: zero). Gradients and main weights
/// are made by allocate_training.
ParamBuffer allocate_weights(std::vector<ParamRef> params, at::ScalarType model_dtype);

/// Adds main weights (copies of the weights as they are now) and zeroed main gradients.
void allocate_training(ParamBuffer& buffer, at::ScalarType main_dtype);

/// Moves the weights, the main weights or the gradients to a kind of device, contents and views with them.
/// Main weights that are the weights move with these.
void move_weights(ParamBuffer& buffer, c10::DeviceType device);
void move_main_params(ParamBuffer& buffer, c10::DeviceType device);
void move_grads(ParamBuffer& buffer, c10::DeviceType device);

}  // namespace mgfl::optimizer
