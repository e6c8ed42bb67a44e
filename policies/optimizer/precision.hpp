/// The precisions that a model can be trained in.
#pragma once

#include "mgfl/policy/optimizer_policy.hpp"

namespace mgfl::optimizer {

/// Everything in double precision: for exact comparisons.
struct Fp64 {
  static constexpr auto model_dtype = c10::ScalarType::Double, main_dtype = c10::ScalarType::Double;
  static constexpr bool scales_loss = false;
};

/// Everything in single precision.
struct Fp32 {
  static constexpr auto model_dtype = c10::ScalarType::Float, main_dtype = c10::ScalarType::Float;
  static constexpr bool scales_loss = false;
};

/// bf16 weights and activations; fp32 main weights, gradients and optimizer state.
struct Bf16WithFp32Main {
  static constexpr auto model_dtype = c10::ScalarType::BFloat16, main_dtype = c10::ScalarType::Float;
  static constexpr bool scales_loss = false;
};

/// fp16 weights and activations, fp32 main copies, one loss scaler for all parameters.
struct Fp16WithLossScaler {
  static constexpr auto model_dtype = c10::ScalarType::Half, main_dtype = c10::ScalarType::Float;
  static constexpr bool scales_loss = true;
};

static_assert(Precision<Fp64> && Precision<Fp32> && Precision<Bf16WithFp32Main> &&
              Precision<Fp16WithLossScaler>);

}  // namespace mgfl::optimizer
