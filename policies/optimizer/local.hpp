/// The optimizer policy without sharding: every data-parallel rank holds the whole optimizer state.
#pragma once

#include "policies/optimizer/mixed_precision_optimizer.hpp"

namespace mgfl::optimizer {

/// `Local<AdamW, Bf16WithFp32Main>`, or with an optimizer of one's own in AdamW's place.
template <FlatOptimizer Kind, Precision P>
struct Local {
  using precision = P;
  using buffer_type = ParamBuffer;
  using main_params_type = MainParams;
  template <parallel::Communicator C>
  using optimizer_type = MixedPrecisionOptimizer<P, C, Kind>;

  static ParamBuffer allocate_weights(std::vector<ParamRef> params, at::ScalarType model_dtype) {
    return optimizer::allocate_weights(std::move(params), model_dtype);
  }
  static void move_weights(ParamBuffer& buffer, c10::DeviceType device) {
    optimizer::move_weights(buffer, device);
  }
  static void move_grads(ParamBuffer& buffer, c10::DeviceType device) {
    optimizer::move_grads(buffer, device);
  }
  static void allocate_training(ParamBuffer& buffer, at::ScalarType main_dtype) {
    optimizer::allocate_training(buffer, main_dtype);
  }
};

static_assert(OptimizerPolicy<Local<AdamW, Fp32>>);

}  // namespace mgfl::optimizer
