#include "policies/model/linear_cross_entropy.hpp"

#include <algorithm>

#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl::model {

namespace {

// Rows of logits in flight. The weight gradient's GEMM wants many rows in bf16; 16-bit rows are half as wide.
std::int64_t chunk_rows(at::ScalarType dtype) { return c10::elementSize(dtype) == 2 ? 2048 : 1024; }

/// 1 / temperature of every token; the floor is verl's.
Tensor logit_scale(const Batch& batch, at::ScalarType dtype) {
  if (!batch.temperature.defined()) return zeros({batch.num_tokens()}, dtype).fill_(1.0);
  return batch.temperature.clamp_min(1e-8).reciprocal().to(dtype);
}

/// What all three passes share: chunk buffers and the batch's per-token inputs.
struct Pass {
  const Tensor& hidden;
  const Tensor& weight;
  const Batch& batch;
  at::ScalarType statistics;
  Tensor scale, logits, largest, sum_exp, sum_exp_z, predicted;

  Pass(const Tensor& hidden, const Tensor& weight, const Batch& batch, Arena& arena)
      : hidden(hidden),
        weight(weight),
        batch(batch),
        statistics(kernels::main_dtype(hidden.scalar_type())),
        scale(logit_scale(batch, statistics)) {
    const auto rows = std::min(chunk_rows(hidden.scalar_type()), std::max<std::int64_t>(hidden.size(0), 1));
    logits = arena.take({rows, weight.size(0)}, hidden.scalar_type());
    for (auto* row : {&largest, &sum_exp, &sum_exp_z, &predicted}) *row = arena.take({rows}, statistics);
  }

  template <class Body>
  void for_each_chunk(Body&& body) {
    const auto tokens = hidden.size(0);
    for (std::int64_t first = 0; first < tokens; first += logits.size(0)) {
      const auto rows = std::min(logits.size(0), tokens - first);
      auto chunk = logits.narrow(0, 0, rows);
      kernels::linear(hidden.narrow(0, first, rows), weight, Tensor(), chunk);
      body(first, rows, chunk);
    }
  }

  /// Statistics of the chunk, turned into lse, entropy and log p(label) of rows [first, first + rows).
  void statistics_of(std::int64_t first, std::int64_t rows, const Tensor& chunk, Tensor& log_normalizer,
                     Tensor& entropy, Tensor& log_probs) {
    const auto cut = [&](Tensor& t) { return t.narrow(0, 0, rows); };
    auto top = cut(largest), sum = cut(sum_exp), sum_z = cut(sum_exp_z), label_z = cut(predicted);
    const auto labels = batch.labels.narrow(0, first, rows);
    kernels::vocab_row_statistics(chunk, labels, scale.narrow(0, first, rows), 0, top, sum, sum_z, label_z);
    const auto log_sum = sum.log();
    log_normalizer.narrow(0, first, rows).copy_(log_sum.add(top));
    entropy.narrow(0, first, rows).copy_(log_sum.sub(sum_z.div(sum)));
    // label_z - largest first: both are near each other, so nothing is lost.
    log_probs.narrow(0, first, rows)
        .copy_(label_z.sub(top).sub(log_sum).masked_fill(labels.eq(ignore_index), 0.0));
  }

  void gradients_of(std::int64_t first, std::int64_t rows, Tensor& chunk, const Tensor& log_normalizer,
                    const Tensor& entropy, const Tensor& d_log_prob, const Tensor& d_entropy,
                    Tensor& d_hidden, Tensor& weight_grad) {
    const auto cut = [&](const Tensor& t) { return t.defined() ? t.narrow(0, first, rows) : t; };
    kernels::vocab_rows_backward(chunk, cut(batch.labels), cut(scale), 0, cut(log_normalizer), cut(entropy),
                                 cut(d_log_prob), cut(d_entropy));
    auto d_rows = d_hidden.narrow(0, first, rows);
    kernels::linear_input_grad(chunk, weight, d_rows);
    kernels::linear_weight_grad(chunk, hidden.narrow(0, first, rows), weight_grad);
  }
};

/// An ignored label's log-prob is the constant 0, so nothing flows back through it.
Tensor without_ignored(const Tensor& d_log_prob, const Batch& batch) {
  return d_log_prob.masked_fill(batch.labels.eq(ignore_index), 0.0);
}

}  // namespace

HeadOutput linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Batch& batch,
                                bool with_entropy, Arena& arena, Tensor& log_normalizer, Tensor& entropy) {
  const auto tokens = hidden.size(0);
  log_normalizer = arena.take({tokens}, kernels::main_dtype(hidden.scalar_type()));
  entropy = arena.take({tokens}, kernels::main_dtype(hidden.scalar_type()));
  const auto start = arena.mark();
  Pass pass(hidden, weight, batch, arena);
  HeadOutput out{empty({tokens}, pass.statistics), {}};
  pass.for_each_chunk([&](std::int64_t first, std::int64_t rows, Tensor& chunk) {
    pass.statistics_of(first, rows, chunk, log_normalizer, entropy, out.log_probs);
  });
  if (with_entropy) out.entropy = entropy.clone();
  arena.release(start);
  return out;
}

void linear_cross_entropy_backward(const Tensor& hidden, const Tensor& weight, const Batch& batch,
                                   const Tensor& log_normalizer, const Tensor& entropy,
                                   const Tensor& d_log_prob, const Tensor& d_entropy, Arena& arena,
                                   Tensor& d_hidden, Tensor& weight_grad) {
  const auto start = arena.mark();
  Pass pass(hidden, weight, batch, arena);
  const auto d_label = without_ignored(d_log_prob, batch);
  pass.for_each_chunk([&](std::int64_t first, std::int64_t rows, Tensor& chunk) {
    pass.gradients_of(first, rows, chunk, log_normalizer, entropy, d_label, d_entropy, d_hidden, weight_grad);
  });
  arena.release(start);
}

HeadOutput linear_cross_entropy_forward_backward(const Tensor& hidden, const Tensor& weight,
                                                 const Batch& batch, const Tensor& d_log_prob,
                                                 bool with_entropy, Arena& arena, Tensor& d_hidden,
                                                 Tensor& weight_grad) {
  const auto tokens = hidden.size(0);
  const auto start = arena.mark();
  auto log_normalizer = arena.take({tokens}, kernels::main_dtype(hidden.scalar_type()));
  auto entropy = arena.take({tokens}, kernels::main_dtype(hidden.scalar_type()));
  Pass pass(hidden, weight, batch, arena);
  HeadOutput out{empty({tokens}, pass.statistics), {}};
  const auto d_label = without_ignored(d_log_prob, batch);
  pass.for_each_chunk([&](std::int64_t first, std::int64_t rows, Tensor& chunk) {
    pass.statistics_of(first, rows, chunk, log_normalizer, entropy, out.log_probs);
    pass.gradients_of(first, rows, chunk, log_normalizer, entropy, d_label, Tensor(), d_hidden, weight_grad);
  });
  if (with_entropy) out.entropy = entropy.clone();
  arena.release(start);
  return out;
}

}  // namespace mgfl::model
