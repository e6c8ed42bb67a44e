/// What optimizer policies on flat buffers have in common, however ranks share the work.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "policies/optimizer/mixed_precision_optimizer.hpp"

namespace mgfl::optimizer {

/// The parts of an OptimizerPolicy; `Sharding` as in sharding.hpp.
template <FlatOptimizer Kind, Precision P, class Sharding>
struct FlatPolicy {
  using precision = P;
  using buffer_type = ParamBuffer;
  template <parallel::Communicator C>
  using optimizer_type = MixedPrecisionOptimizer<P, C, Kind, Sharding>;

  static ParamBuffer allocate_weights(std::vector<ParamRef> params, at::ScalarType model_dtype) {
    return optimizer::allocate_weights(std::move(params), model_dtype);
  }
  static void allocate_training(ParamBuffer& buffer, at::ScalarType main_dtype, int rank, int size) {
    Sharding::cut(buffer, rank, size);
    optimizer::allocate_training(buffer, main_dtype);
  }
  static void fill_main_params(ParamBuffer& buffer, function_ref<void(std::span<const ParamRef>)> fill) {
    optimizer::fill_main_params(buffer, fill);
  }
  static void move_weights(ParamBuffer& buffer, c10::DeviceType device) {
    optimizer::move_weights(buffer, device);
  }
  static void move_grads(ParamBuffer& buffer, c10::DeviceType device) {
    optimizer::move_grads(buffer, device);
  }
};

}  // namespace mgfl::optimizer
