/// Policy and value losses of reinforcement learning, as (sum, count) terms over response tokens. Mirrors
/// verl's ppo_loss, value_loss and agg_loss.
#pragma once

#include <optional>
#include <string_view>

#include "mgfl/engine/outputs.hpp"
#include "policies/rl/response_tokens.hpp"

namespace mgfl::rl {

/// How token losses become one number. l: a token's loss, N: response tokens, S: sequences with any.
enum class LossAggMode {
  token_mean,               // sum l / N
  token_sum,                // sum l
  seq_mean_token_sum,       // sum l / S
  seq_mean_token_mean,      // sum over sequences of (their mean l) / S
  seq_mean_token_sum_norm,  // sum l / S / loss_scale_factor
};

/// The mode of verl's name, e.g. "seq-mean-token-mean". UserError where there is none.
LossAggMode loss_agg_mode(std::string_view name);

struct Aggregation {
  LossAggMode mode = LossAggMode::token_mean;
  /// Divisor of seq-mean-token-sum-norm, which needs one: verl's default is the length that responses are
  /// padded to, which packed sequences do not have.
  double loss_scale_factor = 0;
  /// Whether sequences without a response token count in S, as where verl gets global_batch_size. Those
  /// without any token never do.
  bool count_masked_sequences = false;
};

/// The sum and the count that the engine adds up over micro-batches and data-parallel ranks and divides once
/// (or not at all: token-sum): exact however the batch is split between sequences.
struct SumAndCount {
  Tensor sum;  // fp64 scalar, differentiable
  double count = 0;
  MetricAggregation aggregation = MetricAggregation::mean;
};

/// Aggregates `loss`, fp64 [responses].
SumAndCount agg_loss(const Tensor& loss, const ResponseTokens& tokens, const Aggregation& aggregation);

/// Estimates of KL(policy || reference) from the log-probabilities of sampled tokens, d = log p - log p_ref.
enum class KlPenalty {
  kl,          // d (k1)
  abs,         // |d|
  mse,         // d^2 / 2 (k2)
  low_var_kl,  // exp(-d) + d - 1 (k3), -d within +-20, the estimate within +-10
};

/// The estimate of verl's name: kl or k1, abs, mse or k2, low_var_kl or k3. UserError where there is none.
KlPenalty kl_penalty_named(std::string_view name);

/// The estimate for each token, differentiable.
Tensor kl_penalty(const Tensor& log_prob, const Tensor& ref_log_prob, KlPenalty estimate);

enum class PolicyLossMode {
  vanilla,  // PPO's clip of each token's ratio, with dual clip
  gspo,     // one ratio a sequence: the geometric mean of its tokens' ratios
};

struct PolicyLossConfig {
  PolicyLossMode mode = PolicyLossMode::vanilla;
  double clip_ratio_low = 0.2;  // ratios count within [1 - low, 1 + high]
  double clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;  // dual clip: the largest loss per negative advantage; gspo has none
  double entropy_coeff = 0;   // the loss falls by entropy_coeff x entropy
  double kl_loss_coef = 0;    // the loss grows by kl_loss_coef x KL estimate
  KlPenalty kl_loss_type = KlPenalty::low_var_kl;
  Aggregation aggregation = {};
};

/// One micro-batch: packed vectors [tokens], fp32 or fp64.
struct PolicyTokens {
  Tensor log_probs;      // of the policy, differentiated
  Tensor entropy;        // differentiated; undefined where entropy_coeff is 0 and no metric is wanted
  Tensor response_mask;  // 1 on positions that predict a response token
  Tensor cu_seqlens;     // int32 [sequences + 1]
  Tensor old_log_probs;  // of the policy that the responses were drawn from
  Tensor advantages;
  Tensor ref_log_prob;        // undefined where kl_loss_coef is 0 and no metric is wanted
  Tensor rollout_is_weights;  // importance weights of another sampler; undefined: 1
};

/// PPO's or GSPO's loss with entropy bonus and KL penalty. Terms: loss, which enters the gradient;
/// actor/pg_loss, actor/entropy_loss and kl_loss, its parts; actor/pg_clipfrac, actor/ppo_kl and
/// actor/pg_clipfrac_lower, means over response tokens.
///
/// As a loss of an engine it takes from the batch's token fields, verl's names: old_log_probs, advantages,
/// and where they are there ref_log_prob, rollout_is_weights and response_mask, else loss_mask.
struct PolicyLoss {
  PolicyLossConfig config;
  LossTerms operator()(const PolicyTokens& tokens) const;
  LossTerms operator()(const LossInput& input) const;
};

struct ValueLossConfig {
  std::optional<double> cliprange_value =
      0.5;  // predictions count within old values +- this; none: as they are
  Aggregation aggregation = {};
};

/// One micro-batch: packed vectors [tokens], fp32 or fp64.
struct ValueTokens {
  Tensor vpreds;  // the critic's values, differentiated
  Tensor response_mask;
  Tensor cu_seqlens;  // int32 [sequences + 1]
  Tensor values;      // the critic's when the responses were drawn; undefined where nothing is clipped
  Tensor returns;
};

/// PPO's clipped value loss, 0.5 max((v - R)^2, (clip(v) - R)^2). Terms: critic/vf_loss, which enters the
/// gradient; critic/vf_clipfrac and critic/vpred_mean, means over response tokens.
///
/// As a loss of an engine it takes the batch's token fields returns, values where it clips, and response_mask
/// where it is there, else loss_mask.
struct ValueLoss {
  ValueLossConfig config;
  LossTerms operator()(const ValueTokens& tokens) const;
  LossTerms operator()(const ValueLossInput& input) const;
};

}  // namespace mgfl::rl
