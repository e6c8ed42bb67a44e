/// Activations that carry their placement on the tensor-parallel group in their type, so that norming a
/// partial sum, or reducing twice, does not compile: only a region's collective converts one into another.
// Mirrors megatron.core.tensor_parallel.mappings.
#pragma once

#include <cstdint>
#include <utility>

#include "mgfl/parallel/param.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

namespace placement {
struct Partial {};        // every tp rank holds a summand of the whole
struct SequenceShard {};  // every tp rank holds its own tokens
}  // namespace placement

/// A [tokens, width] activation with placement P.
template <class P>
struct Act {
  Tensor tensor;
};

namespace parallel {

// A region says how the residual stream lies between linear layers (`stream`), and converts: `enter` makes
// the whole input of a column-parallel layer of it, `leave` makes it of a row-parallel layer's summands.
// Backward, `enter` does for gradients what `leave`'s derivative asks, and the other way round. `partial`
// chooses where a summand is written: `wide` [rows(tokens) * size, width], or the stream's own tensor.
// `leave_during` lets work that does not touch the summand run meanwhile.

/// A tensor-parallel group of one, known when compiling: no collective, and no code for one.
struct NoTensorParallel {
  using stream = placement::Replicated;
  static constexpr bool is_parallel = false;

  std::int64_t rows(std::int64_t tokens) const { return tokens; }
  std::int64_t first_row(std::int64_t) const { return 0; }
  static Tensor& partial(Tensor&, Tensor& own) { return own; }
  static Act<stream> enter(Act<stream> x, Tensor&) { return x; }
  static Act<stream> leave(Act<placement::Partial> y, Tensor&) { return {std::move(y.tensor)}; }
  template <class Work>
  static void leave_during(Act<placement::Partial>, Tensor&, Work&& work) {
    work();
  }
};

/// The stream is whole on every tp rank.
struct TensorParallelRegion {
  using stream = placement::Replicated;
  static constexpr bool is_parallel = true;
  const TensorParallelGroup& group;

  std::int64_t rows(std::int64_t tokens) const { return tokens; }
  std::int64_t first_row(std::int64_t) const { return 0; }
  static Tensor& partial(Tensor&, Tensor& own) { return own; }
  static Act<stream> enter(Act<stream> x, Tensor&) { return x; }
  /// Sum over tp ranks, in place.
  Act<stream> leave(Act<placement::Partial> y, Tensor&) const {
    group.all_reduce(y.tensor);
    return {std::move(y.tensor)};
  }
  template <class Work>
  void leave_during(Act<placement::Partial> y, Tensor&, Work&& work) const {
    group.all_reduce_during(y.tensor, work);
  }
};

/// Every tp rank holds rows(tokens) rows of the stream: as many on each, the last ones padding. Padding is
/// finite, and its gradient zero.
struct SequenceParallelRegion {
  using stream = placement::SequenceShard;
  static constexpr bool is_parallel = true;
  const TensorParallelGroup& group;
  std::int64_t tokens;

  std::int64_t rows(std::int64_t tokens) const { return (tokens + group.size() - 1) / group.size(); }
  std::int64_t first_row(std::int64_t tokens) const { return group.rank() * rows(tokens); }
  static Tensor& partial(Tensor& wide, Tensor&) { return wide; }
  /// All ranks' rows in `wide`; the padding is cut off.
  Act<placement::Replicated> enter(Act<stream> x, Tensor& wide) const {
    auto whole = wide.view({group.size(), x.tensor.size(0), x.tensor.size(1)});
    group.all_gather(x.tensor, whole);
    return {wide.narrow(0, 0, tokens)};
  }
  /// The sum over tp ranks of y [rows(tokens) * size, width], this rank's rows of it in `own`.
  Act<stream> leave(Act<placement::Partial> y, Tensor& own) const {
    group.reduce_scatter(y.tensor, own);
    return {own};
  }
  template <class Work>
  void leave_during(Act<placement::Partial> y, Tensor& own, Work&& work) const {
    group.reduce_scatter(y.tensor, own);
    work();
  }
};

/// Calls body(region) with the region that fits; the one decision of a pass.
template <class Body>
decltype(auto) with_region(const ModelParallel& parallel, std::int64_t tokens, Body&& body) {
  if (parallel.tensor_parallel.size() == 1) return body(NoTensorParallel{});
  if (parallel.sequence_parallel) return body(SequenceParallelRegion{parallel.tensor_parallel, tokens});
  return body(TensorParallelRegion{parallel.tensor_parallel});
}

}  // namespace parallel
}  // namespace mgfl
