#include "policies/model/linear_cross_entropy.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/kernels/main_dtype.hpp"
#include "policies/tensor_parallel/cross_entropy.hpp"

namespace mgfl::model {

namespace {

// Rows of logits in flight. The weight gradient's GEMM wants many rows in bf16; 16-bit rows are half as wide.
std::int64_t chunk_rows(at::ScalarType dtype) { return c10::elementSize(dtype) == 2 ? 2048 : 1024; }

/// What all three passes share: chunk buffers and the batch's per-token inputs.
struct Pass {
  const Tensor& hidden;
  const VocabShard& head;
  const Batch& batch;
  at::ScalarType statistics;
  Tensor scale, logits, largest, sum_exp, sum_exp_z, predicted;
  bool sharp;  // some temperature is so small that logits over it lose digits in fp32

  Pass(const Tensor& hidden, const VocabShard& head, const Batch& batch, Arena& arena)
      : hidden(hidden),
        head(head),
        batch(batch),
        statistics(kernels::main_dtype(hidden.scalar_type())),
        scale(logit_scale(batch, statistics)),
        sharp(statistics == at::kFloat && batch.temperature.defined() && hidden.size(0) > 0 &&
              batch.temperature.min().item<double>() < 0.1) {
    const auto rows = std::min(chunk_rows(hidden.scalar_type()), std::max<std::int64_t>(hidden.size(0), 1));
    logits = arena.take({rows, head.weight.size(0)}, hidden.scalar_type());
    for (auto* row : {&largest, &sum_exp, &sum_exp_z, &predicted}) *row = arena.take({rows}, statistics);
  }

  bool holds_columns() const { return head.weight.size(0) > 0; }

  template <class Body>
  void for_each_chunk(Body&& body) {
    const auto tokens = hidden.size(0);
    for (std::int64_t first = 0; first < tokens; first += logits.size(0)) {
      const auto rows = std::min(logits.size(0), tokens - first);
      auto chunk = logits.narrow(0, 0, rows);
      if (holds_columns()) kernels::linear(hidden.narrow(0, first, rows), head.weight, Tensor(), chunk);
      body(first, rows, chunk);
    }
  }

  void sum_over_group(Tensor& tensor) const {
    if (head.group) head.group->all_reduce(tensor);
  }

  /// The kernels see a chunk over its temperature. Where that would round the small differences of large
  /// numbers away, they see (logit - the row's largest) / temperature instead, which changes no probability.
  struct Seen {
    Tensor logits, scale;
  };
  Seen seen(std::int64_t first, std::int64_t rows, const Tensor& chunk) const {
    const auto factor = scale.narrow(0, first, rows);
    if (!sharp) return {chunk, factor};
    const auto z = chunk.to(statistics);
    auto top = holds_columns() ? z.amax(-1) : zeros({rows}, statistics).fill_(lowest());
    if (head.group) head.group->all_reduce(top, ReduceOp::max);
    return {z.sub(top.unsqueeze(1)).mul_(factor.unsqueeze(1)), zeros({rows}, statistics).fill_(1.0)};
  }

  /// Of what `seen` gives, in memory of their own, since `to` may hand out the chunk.
  Tensor probabilities(std::int64_t first, std::int64_t rows, const Seen& seen,
                       const Tensor& log_normalizer) const {
    return seen.logits.to(statistics)
        .mul(seen.scale.unsqueeze(1))
        .sub_(log_normalizer.narrow(0, first, rows).unsqueeze(1))
        .exp_();
  }

  /// Statistics of the chunk, turned into those of rows [first, first + rows) and log p(label).
  void statistics_of(std::int64_t first, std::int64_t rows, const Tensor& chunk, HeadStatistics& kept,
                     Tensor& log_probs) {
    const auto cut = [&](Tensor& t) { return t.narrow(0, 0, rows); };
    auto top = cut(largest), sum = cut(sum_exp), sum_z = cut(sum_exp_z), label_z = cut(predicted);
    const auto labels = batch.labels.narrow(0, first, rows);
    const auto given = seen(first, rows, chunk);
    kernels::vocab_row_statistics(given.logits, labels, given.scale, head.first_column, top, sum, sum_z,
                                  label_z);
    if (head.group) tensor_parallel::combine_vocab_statistics({top, sum, sum_z, label_z}, *head.group);
    const auto log_sum = sum.log();
    kept.log_normalizer.narrow(0, first, rows).copy_(log_sum.add(top));
    kept.entropy.narrow(0, first, rows).copy_(log_sum.sub(sum_z.div(sum)));
    // label_z - largest first: both are near each other, so nothing is lost.
    log_probs.narrow(0, first, rows)
        .copy_(label_z.sub(top).sub(log_sum).masked_fill(labels.eq(ignore_index), 0.0));
    if (kept.sum_pi_squared.defined()) {
      auto squares = probabilities(first, rows, given, kept.log_normalizer).square_().sum(-1);
      sum_over_group(squares);
      kept.sum_pi_squared.narrow(0, first, rows).copy_(squares);
    }
    if (kept.mean_log_probs.defined()) {
      auto log_p = given.logits.to(statistics)
                       .mul(given.scale.unsqueeze(1))
                       .sub_(kept.log_normalizer.narrow(0, first, rows).unsqueeze(1))
                       .sum(-1);
      sum_over_group(log_p);
      kept.mean_log_probs.narrow(0, first, rows).copy_(log_p.div_(static_cast<double>(head.vocab_size)));
    }
  }

  void gradients_of(std::int64_t first, std::int64_t rows, Tensor& chunk, const HeadStatistics& kept,
                    const LanguageModelOutput& d_output, Tensor& d_hidden) {
    auto d_rows = d_hidden.narrow(0, first, rows);
    const auto cut = [&](const Tensor& t) { return t.defined() ? t.narrow(0, first, rows) : t; };
    const auto column = [&](const Tensor& t) { return cut(t).unsqueeze(1); };
    auto given = seen(first, rows, chunk);
    if (!holds_columns()) {
      d_rows.zero_();
      return;
    }
    // What is rarely wanted is not the kernel's business: d sum(p^2) / dz = 2 p (p - sum(p^2)), and
    // d mean(log p) / dz = 1 / vocab_size - p.
    Tensor rare;
    const auto add = [&](Tensor term) { rare = rare.defined() ? rare.add_(term) : std::move(term); };
    if (d_output.sum_pi_squared.defined() || d_output.mean_log_probs.defined()) {
      const auto p = probabilities(first, rows, given, kept.log_normalizer);
      if (d_output.sum_pi_squared.defined())
        add(p.sub(column(kept.sum_pi_squared))
                .mul_(p)
                .mul_(column(d_output.sum_pi_squared).mul(column(scale)).mul(2.0)));
      if (d_output.mean_log_probs.defined())
        add(p.neg()
                .add_(1.0 / static_cast<double>(head.vocab_size))
                .mul_(column(d_output.mean_log_probs).mul(column(scale))));
    }
    kernels::vocab_rows_backward(given.logits, cut(batch.labels), given.scale, head.first_column,
                                 cut(kept.log_normalizer), cut(kept.entropy), cut(d_output.log_probs),
                                 cut(d_output.entropy));
    if (sharp) chunk.copy_(given.logits.mul_(cut(scale).unsqueeze(1)));
    if (rare.defined()) chunk.copy_(rare.add_(chunk));
    kernels::linear_input_grad(chunk, head.weight, d_rows);
    auto weight_grad = head.weight_grad;
    kernels::linear_weight_grad(chunk, hidden.narrow(0, first, rows), weight_grad);
  }

  double lowest() const {
    return statistics == at::kDouble ? std::numeric_limits<double>::lowest()
                                     : static_cast<double>(std::numeric_limits<float>::lowest());
  }
};

/// An ignored label's log-prob is the constant 0, so nothing flows back through it.
LanguageModelOutput without_ignored(const LanguageModelOutput& d_output, const Batch& batch,
                                    at::ScalarType dtype) {
  auto result = d_output;
  if (result.log_probs.defined())
    result.log_probs = result.log_probs.masked_fill(batch.labels.eq(ignore_index), 0.0);
  else
    result.log_probs = zeros({batch.num_tokens()}, dtype);
  return result;
}

HeadStatistics take_statistics(Arena& arena, std::int64_t tokens, at::ScalarType dtype,
                               const HeadRequest& request) {
  HeadStatistics kept;
  for (auto* row : {&kept.log_normalizer, &kept.entropy}) *row = arena.take({tokens}, dtype);
  if (request.sum_pi_squared) kept.sum_pi_squared = arena.take({tokens}, dtype);
  if (request.mean_log_probs) kept.mean_log_probs = arena.take({tokens}, dtype);
  return kept;
}

/// What is asked for, out of the arena.
LanguageModelOutput output_of(Tensor log_probs, const HeadStatistics& kept, const HeadRequest& request) {
  LanguageModelOutput output{std::move(log_probs), {}, {}, {}};
  if (request.entropy) output.entropy = kept.entropy.clone();
  if (request.sum_pi_squared) output.sum_pi_squared = kept.sum_pi_squared.clone();
  if (request.mean_log_probs) output.mean_log_probs = kept.mean_log_probs.clone();
  return output;
}

}  // namespace

Tensor logit_scale(const Batch& batch, at::ScalarType dtype) {
  if (!batch.temperature.defined()) return zeros({batch.num_tokens()}, dtype).fill_(1.0);
  return batch.temperature.clamp_min(1e-8).reciprocal().to(dtype);
}

LanguageModelOutput linear_cross_entropy(const Tensor& hidden, const VocabShard& head, const Batch& batch,
                                         const HeadRequest& request, Arena& arena,
                                         HeadStatistics& statistics) {
  const auto tokens = hidden.size(0);
  statistics = take_statistics(arena, tokens, kernels::main_dtype(hidden.scalar_type()), request);
  const auto start = arena.mark();
  Pass pass(hidden, head, batch, arena);
  auto log_probs = empty({tokens}, pass.statistics);
  pass.for_each_chunk([&](std::int64_t first, std::int64_t rows, Tensor& chunk) {
    pass.statistics_of(first, rows, chunk, statistics, log_probs);
  });
  arena.release(start);
  return output_of(std::move(log_probs), statistics, request);
}

void linear_cross_entropy_backward(const Tensor& hidden, const VocabShard& head, const Batch& batch,
                                   const HeadStatistics& statistics, const LanguageModelOutput& d_output,
                                   Arena& arena, Tensor& d_hidden) {
  const auto start = arena.mark();
  Pass pass(hidden, head, batch, arena);
  const auto d_rows = without_ignored(d_output, batch, pass.statistics);
  pass.for_each_chunk([&](std::int64_t first, std::int64_t rows, Tensor& chunk) {
    pass.gradients_of(first, rows, chunk, statistics, d_rows, d_hidden);
  });
  arena.release(start);
}

LanguageModelOutput linear_cross_entropy_forward_backward(const Tensor& hidden, const VocabShard& head,
                                                          const Batch& batch, const Tensor& d_log_prob,
                                                          const HeadRequest& request, Arena& arena,
                                                          Tensor& d_hidden) {
  const auto tokens = hidden.size(0);
  const auto start = arena.mark();
  auto kept = take_statistics(arena, tokens, kernels::main_dtype(hidden.scalar_type()), request);
  Pass pass(hidden, head, batch, arena);
  auto log_probs = empty({tokens}, pass.statistics);
  const auto d_output = without_ignored({d_log_prob, {}, {}, {}}, batch, pass.statistics);
  pass.for_each_chunk([&](std::int64_t first, std::int64_t rows, Tensor& chunk) {
    pass.statistics_of(first, rows, chunk, kept, log_probs);
    pass.gradients_of(first, rows, chunk, kept, d_output, d_hidden);
  });
  auto output = output_of(std::move(log_probs), kept, request);
  arena.release(start);
  return output;
}

}  // namespace mgfl::model
