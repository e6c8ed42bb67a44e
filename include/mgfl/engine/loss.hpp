/// Losses that are a weighted sum of log-probabilities: their gradient is known beforehand, so the engine
/// computes logits once.
#pragma once

#include <concepts>
#include <string>

#include "mgfl/engine/outputs.hpp"

namespace mgfl {

/// loss = sum(-weight * log_prob) / count, weight fp32 [tokens].
struct TokenWeights {
  std::string name;
  Tensor weight;
  double count = 0;
};

/// A loss object that can say its token weights without seeing the model's output.
template <class L>
concept TokenWeightedLoss = requires(const L& loss, const Batch& batch) {
  { loss.token_weights(batch) } -> std::convertible_to<TokenWeights>;
};

/// Supervised fine-tuning and pre-training: cross-entropy, the mean over the mask. Positions with an ignored
/// label do not count.
struct SftLoss {
  TokenWeights token_weights(const Batch& batch) const;
};

static_assert(TokenWeightedLoss<SftLoss>);

/// s of a loss with label smoothing, (1 - s) (-log p(label)) - s mean over the vocabulary of log p:
/// label_smoothing * V / (V - 1) for a vocabulary of V tokens, all ranks' together. (Megatron's formula,
/// which there takes V from each rank's own columns.) UserError unless label_smoothing is from 0 to below 1,
/// and, where it is not 0, there are two tokens.
double share_of_mean_log_prob(double label_smoothing, std::int64_t vocab_size);

/// SftLoss with label smoothing: (1 - s) (-log p(label)) - s mean over the vocabulary of log p, see
/// share_of_mean_log_prob. UserError unless the batch or EngineConfig asks for calculate_mean_log_probs.
struct LabelSmoothedLoss {
  double label_smoothing = 0.1;
  std::int64_t vocab_size = 0;

  LossTerms operator()(const LossInput& input) const;
};

/// Sum in ascending order and in double precision, whatever the number of threads.
double ordered_sum(const Tensor& values);

/// What the terms that enter the gradient come to in one micro-batch.
struct TotalLoss {
  Tensor sum;  // undefined where no term enters the gradient
  double count = 0;
  MetricAggregation aggregation = MetricAggregation::mean;
};

/// Adds the terms that enter the gradient. UserError where they do not share one count and aggregation, and
/// where two terms have one name.
TotalLoss total_loss(const LossTerms& terms);

}  // namespace mgfl
