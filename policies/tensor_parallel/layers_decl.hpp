/// The original of ColumnParallelLinear.forward.
/// Python: megatron/core/tensor_parallel/layers.py, ColumnParallelLinear.forward
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/tensor_parallel.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

namespace placement {
struct Replicated;
}
template <class P>
struct Act;

namespace tensor_parallel {

/// A linear layer of which a rank holds some output columns. Borrows its weights.
struct ColumnParallelLinear {
  const Tensor& weight;  // [this rank's columns, in]
  const Tensor& bias;    // [this rank's columns], or undefined
};

}  // namespace tensor_parallel

/// y [tokens, this rank's columns] = x weight^T + bias, for an input [tokens, in] that is whole on every
/// rank.
template <>
struct implementation<targets::column_parallel_linear_forward, vendors::original> {
  using self = const tensor_parallel::ColumnParallelLinear;
  static void call(const tensor_parallel::ColumnParallelLinear& self, const Act<placement::Replicated>& x,
                   Tensor& y);
};

}  // namespace mgfl
