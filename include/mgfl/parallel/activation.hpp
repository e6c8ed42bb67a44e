/// Activations that carry their placement on the tensor-parallel group in their type, so that norming a
/// partial sum, or reducing twice, does not compile: only a collective converts one into another.
#pragma once

#include <utility>

#include "mgfl/parallel/param.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

namespace placement {
struct Partial {};        // every tp rank holds a summand of the whole
struct HeadShard {};      // every tp rank holds its own heads or ffn columns
struct SequenceShard {};  // every tp rank holds its own tokens
}  // namespace placement

/// A [tokens, width] activation with placement P.
template <class P>
struct Act {
  Tensor tensor;
};

namespace parallel {

/// A tensor-parallel group of one, known when compiling: its collectives are conversions of type and nothing
/// else.
struct NoTensorParallel {
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
};

/// Forward: sum over tp ranks (Megatron's row-parallel output). Backward: identity.
inline Act<placement::Replicated> reduce_from_tensor_model_parallel_region(NoTensorParallel,
                                                                           Act<placement::Partial> x) {
  return {std::move(x.tensor)};
}

/// Backward of the copy into a column-parallel region: the input gradient's summands become one sum.
inline Act<placement::Replicated> reduce_input_grad(NoTensorParallel, Act<placement::Partial> dx) {
  return {std::move(dx.tensor)};
}

}  // namespace parallel
}  // namespace mgfl
