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

namespace parallel {
struct NoTensorParallel;
struct TensorParallelRegion;
struct SequenceParallelRegion;
}  // namespace parallel

namespace placement {
struct Partial {};        // every tp rank holds a summand of the whole
struct SequenceShard {};  // every tp rank holds its own tokens
}  // namespace placement

/// A [tokens, width] activation with placement P.
template <class P>
struct Act {
  Tensor tensor;
};

/// A summand of an activation. Nobody can read it: a region makes it, `write` fills it, and one collective of
/// the region takes it.
template <>
struct Act<placement::Partial> {
  Act(Act&&) noexcept = default;
  Act& operator=(Act&&) noexcept = default;

  /// Calls fill(rows), which writes the first `rows` rows.
  template <class Fill>
  void write(std::int64_t rows, Fill&& fill) {
    auto written = sum_.narrow(0, 0, rows);
    fill(written);
  }

 private:
  friend struct parallel::NoTensorParallel;
  friend struct parallel::TensorParallelRegion;
  friend struct parallel::SequenceParallelRegion;
  explicit Act(Tensor sum) : sum_(std::move(sum)) {}

  Tensor sum_;
};

namespace parallel {

// A region says how the residual stream lies between linear layers (`stream`), and converts: `enter` makes
// the whole input of a column-parallel layer of it, `leave` makes it of a row-parallel layer's summands.
// Backward, `enter` does for gradients what `leave`'s derivative asks, and the other way round. `partial`
// chooses where a summand is written: `wide` [rows(n) * size, width], or the stream's own tensor. `rows(n)`
// of n tokens lie on a rank, from token `first_row(n)` on. `leave_during` lets work that does not touch the
// summand run meanwhile.

/// A tensor-parallel group of one: no collective, and no code for one.
struct NoTensorParallel {
  using stream = placement::Replicated;
  static constexpr bool is_parallel = false;

  std::int64_t rows(std::int64_t n) const { return n; }
  std::int64_t first_row(std::int64_t) const { return 0; }
  static Act<placement::Partial> partial(const Tensor&, const Tensor& own) {
    return Act<placement::Partial>(own);
  }
  static Act<stream> enter(Act<stream> x, Tensor&) { return x; }
  static Act<stream> leave(Act<placement::Partial>&& y, Tensor&) { return {std::move(y.sum_)}; }
  template <class Work>
  static void leave_during(Act<placement::Partial>&&, Tensor&, Work&& work) {
    work();
  }
};

/// The stream is whole on every tp rank.
struct TensorParallelRegion {
  using stream = placement::Replicated;
  static constexpr bool is_parallel = true;
  const TensorParallelGroup& group;

  std::int64_t rows(std::int64_t n) const { return n; }
  std::int64_t first_row(std::int64_t) const { return 0; }
  static Act<placement::Partial> partial(const Tensor&, const Tensor& own) {
    return Act<placement::Partial>(own);
  }
  static Act<stream> enter(Act<stream> x, Tensor&) { return x; }
  /// Sum over tp ranks, in place.
  Act<stream> leave(Act<placement::Partial>&& y, Tensor&) const {
    group.all_reduce(y.sum_);
    return {std::move(y.sum_)};
  }
  template <class Work>
  void leave_during(Act<placement::Partial>&& y, Tensor&, Work&& work) const {
    group.all_reduce_during(y.sum_, work);
  }
};

/// Every tp rank holds rows(tokens) rows of the stream: as many on each, the last ones padding. Padding is
/// finite, and its gradient zero.
struct SequenceParallelRegion {
  using stream = placement::SequenceShard;
  static constexpr bool is_parallel = true;
  const TensorParallelGroup& group;
  std::int64_t tokens;

  std::int64_t rows(std::int64_t n) const { return (n + group.size() - 1) / group.size(); }
  std::int64_t first_row(std::int64_t n) const { return group.rank() * rows(n); }
  static Act<placement::Partial> partial(const Tensor& wide, const Tensor&) {
    return Act<placement::Partial>(wide);
  }
  /// All ranks' rows in `wide`; the padding is cut off.
  Act<placement::Replicated> enter(Act<stream> x, Tensor& wide) const {
    auto whole = wide.view({group.size(), x.tensor.size(0), x.tensor.size(1)});
    group.all_gather(x.tensor, whole);
    return {wide.narrow(0, 0, tokens)};
  }
  /// The sum over tp ranks of y [rows(tokens) * size, width], this rank's rows of it in `own`.
  Act<stream> leave(Act<placement::Partial>&& y, Tensor& own) const {
    group.reduce_scatter(y.sum_, own);
    return {own};
  }
  template <class Work>
  void leave_during(Act<placement::Partial>&& y, Tensor& own, Work&& work) const {
    group.reduce_scatter(y.sum_, own);
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
