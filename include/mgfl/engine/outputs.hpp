/// What comes out of the engine: per-token outputs of a head, losses as (sum, count) terms, results of calls.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/engine/batch.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// Per-token results of a language-model head, fp32 (fp64 in the Fp64 policy), [tokens].
struct LanguageModelOutput {
  Tensor log_probs;       // log p(label); 0 at ignored labels
  Tensor entropy;         // in nats; undefined unless asked for
  Tensor sum_pi_squared;  // sum of squared probabilities; undefined unless asked for
  Tensor mean_log_probs;  // mean over the vocabulary of log p; undefined unless asked for

  std::array<Tensor*, 4> parts() { return {&log_probs, &entropy, &sum_pi_squared, &mean_log_probs}; }
};

/// Per-token results of a value head, fp32 (fp64 in the Fp64 policy), [tokens].
struct ValueOutput {
  Tensor values;

  std::array<Tensor*, 1> parts() { return {&values}; }
};

/// Which outputs beside the first a head computes.
struct HeadRequest {
  bool entropy = false;
  bool sum_pi_squared = false;
  bool mean_log_probs = false;
};

/// What a loss closure sees of one micro-batch. The outputs record what is computed from them: whatever the
/// closure makes of them is differentiated.
struct LossInput : LanguageModelOutput {
  LossInput(LanguageModelOutput output, const Batch& batch)
      : LanguageModelOutput(std::move(output)), batch(batch) {}
  const Batch& batch;
  Tensor logits;  // [tokens, vocab] over the temperature; undefined with fused kernels
};

/// The same of a critic.
struct ValueLossInput : ValueOutput {
  ValueLossInput(ValueOutput output, const Batch& batch) : ValueOutput(std::move(output)), batch(batch) {}
  const Batch& batch;
};

/// How a metric's values of micro-batches and data-parallel ranks become one.
enum class MetricAggregation {
  mean,  // sum of the sums / sum of the counts
  sum,   // sum of the sums
  min,   // of the sums
  max,
};

/// One loss or metric as a sum and the count to divide by. The one division happens after both are summed
/// over micro-batches and data-parallel ranks.
struct LossTerm {
  std::string name;
  Tensor sum;           // scalar
  double count = 0;     // 0 in every micro-batch: nothing counts, and the step is skipped
  bool is_loss = true;  // enters the gradient (mean or sum); false: reported only
  MetricAggregation aggregation = MetricAggregation::mean;
};

using LossTerms = std::vector<LossTerm>;

/// One number of a result, over all micro-batches and data-parallel ranks.
struct Metric {
  std::string name;
  double sum = 0, count = 0;
  MetricAggregation aggregation = MetricAggregation::mean;
  bool is_loss = false;  // entered the gradient

  double value() const {
    if (aggregation != MetricAggregation::mean) return sum;
    return count > 0 ? sum / count : 0.0;
  }
};

/// The metric of that name. UserError, naming those that are there, where it is not.
const Metric& metric_named(const std::vector<Metric>& metrics, const std::string& name);

/// Result of forward_backward_batch. Per-token tensors are in the batch's order.
template <class Output>
struct BatchResultOf : Output {
  std::vector<Metric> metrics;  // in the order of the closure's terms
  std::int64_t tokens = 0;      // tokens that went through the model, over all data-parallel ranks
  std::int64_t num_micro_batches = 0;

  /// What the gradient is of: the terms that enter it, together.
  double loss() const {
    double total = 0;
    for (const auto& metric : metrics)
      if (metric.is_loss) total += metric.value();
    return total;
  }

  double metric(const std::string& name) const { return metric_named(metrics, name).value(); }
};

using BatchResult = BatchResultOf<LanguageModelOutput>;
using ValueBatchResult = BatchResultOf<ValueOutput>;

/// Outcome of an optimizer step. A skipped step is a result, not an error: found_inf says that gradients were
/// not finite; else the batch had nothing to learn from (a norm of 0), or the norm was above
/// OptimizerConfig::grad_norm_skip_threshold.
struct StepResult {
  bool stepped = false;
  bool found_inf = false;
  double grad_norm = 0;         // before clipping; NaN where found_inf
  std::int64_t num_zeros = -1;  // -1: not counted
  double loss_scale = 1;
};

/// Result of train_batch: the batch's, and what the step did with it.
template <class Output>
struct TrainResultOf : BatchResultOf<Output> {
  StepResult step;
  double lr = 0;  // of group 0, with which the step was made
};

}  // namespace mgfl
