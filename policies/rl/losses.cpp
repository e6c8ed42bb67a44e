#include "policies/rl/losses.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "mgfl/base/error.hpp"

namespace mgfl::rl {

namespace {

template <class Value, std::size_t N>
using Names = std::array<std::pair<std::string_view, Value>, N>;

template <class Value, std::size_t N>
Value named(std::string_view name, const char* what, const Names<Value, N>& names) {
  std::vector<std::string_view> known;
  for (const auto& [text, value] : names) {
    if (text == name) return value;
    known.push_back(text);
  }
  throw UserError(concat("there is no ", what, " \"", name, "\"; choose one of ", join(known), "."));
}

void check_not_negative(double value, const char* name) {
  check_user(value >= 0 && std::isfinite(value), "RL loss: ", name, " is ", value,
             "; give a finite number of 0 or more.");
}

/// Terms of one micro-batch in the making.
struct Terms {
  LossTerms all;

  void add(const char* name, const SumAndCount& part, bool is_loss) {
    auto& term = all.emplace_back();  // filled in place: GCC 12 warns of moved short strings
    term.name = name;
    term.sum = is_loss ? part.sum : part.sum.detach();
    term.count = part.count;
    term.is_loss = is_loss;
    term.aggregation = part.aggregation;
  }

  /// A mean over response tokens that enters no gradient.
  void add_mean(const char* name, const Tensor& values, const ResponseTokens& tokens) {
    add(name, {values.sum(), static_cast<double>(tokens.size())}, false);
  }
};

/// Per-token losses [responses], and the metrics that go with them.
struct PolicyGradient {
  Tensor losses, clipped, clipped_lower;
};

/// The worse of the plain and the clipped objective.
PolicyGradient clipped_objective(const Tensor& ratio, const Tensor& advantages,
                                 const PolicyLossConfig& config) {
  const auto plain = advantages.neg().mul(ratio);
  const auto clipped =
      advantages.neg().mul(ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high));
  return {plain.maximum(clipped), clipped.gt(plain), {}};
}

PolicyGradient vanilla(const Tensor& log_ratio, const Tensor& advantages, const PolicyLossConfig& config) {
  auto result = clipped_objective(log_ratio.exp(), advantages, config);
  const auto negative = advantages.lt(0);
  const auto bound = advantages.mul(-config.clip_ratio_c);
  result.clipped_lower = result.losses.gt(bound).logical_and(negative);
  result.losses = result.losses.minimum(bound).where(negative, result.losses);
  return result;
}

PolicyGradient gspo(const Tensor& log_prob, const Tensor& log_ratio, const Tensor& advantages,
                    const ResponseTokens& tokens, const PolicyLossConfig& config) {
  // The value is the sequence's ratio; the gradient reaches each token through its own log-probability.
  const auto mean = tokens.sequence_sum(log_ratio.detach()).div(tokens.lengths.clamp_min(1));
  const auto ratio = log_prob.sub(log_prob.detach()).add(tokens.per_token(mean)).clamp_max(10.0).exp();
  auto result = clipped_objective(ratio, advantages, config);
  result.clipped_lower = advantages.mul(0.0);
  return result;
}

void check_config(const PolicyLossConfig& config) {
  check_not_negative(config.clip_ratio_low, "clip_ratio_low");
  check_not_negative(config.clip_ratio_high, "clip_ratio_high");
  check_user(config.clip_ratio_c > 1, "RL loss: clip_ratio_c is ", config.clip_ratio_c,
             "; dual clip needs more than 1.");
}

}  // namespace

LossAggMode loss_agg_mode(std::string_view name) {
  using enum LossAggMode;
  constexpr Names<LossAggMode, 5> names{{{"token-mean", token_mean},
                                         {"token-sum", token_sum},
                                         {"seq-mean-token-sum", seq_mean_token_sum},
                                         {"seq-mean-token-mean", seq_mean_token_mean},
                                         {"seq-mean-token-sum-norm", seq_mean_token_sum_norm}}};
  return named(name, "loss_agg_mode", names);
}

SumAndCount agg_loss(const Tensor& loss, const ResponseTokens& tokens, const Aggregation& aggregation) {
  const double num_tokens = static_cast<double>(tokens.size());
  const double num_sequences = aggregation.count_masked_sequences
                                   ? static_cast<double>(tokens.filled_sequences)
                                   : tokens.lengths.gt(0).sum().item<double>();
  switch (aggregation.mode) {
    case LossAggMode::token_mean:
      return {loss.sum(), num_tokens};
    case LossAggMode::token_sum:
      return {loss.sum(), num_tokens, MetricAggregation::sum};
    case LossAggMode::seq_mean_token_sum:
      return {loss.sum(), num_sequences};
    case LossAggMode::seq_mean_token_mean:
      return {tokens.sequence_sum(loss).div(tokens.lengths.clamp_min(1)).sum(), num_sequences};
    case LossAggMode::seq_mean_token_sum_norm:
      break;
  }
  check_user(aggregation.loss_scale_factor > 0,
             "RL loss: seq-mean-token-sum-norm needs loss_scale_factor, "
             "such as the longest response allowed; it is ",
             aggregation.loss_scale_factor, ".");
  return {loss.sum().div(aggregation.loss_scale_factor), num_sequences};
}

KlPenalty kl_penalty_named(std::string_view name) {
  using enum KlPenalty;
  constexpr Names<KlPenalty, 7> names{{{"kl", kl},
                                       {"k1", kl},
                                       {"abs", abs},
                                       {"mse", mse},
                                       {"k2", mse},
                                       {"low_var_kl", low_var_kl},
                                       {"k3", low_var_kl}}};
  return named(name, "KL estimate", names);
}

Tensor kl_penalty(const Tensor& log_prob, const Tensor& ref_log_prob, KlPenalty estimate) {
  const auto difference = log_prob.sub(ref_log_prob);
  switch (estimate) {
    case KlPenalty::kl:
      return difference;
    case KlPenalty::abs:
      return difference.abs();
    case KlPenalty::mse:
      return difference.square().mul(0.5);
    case KlPenalty::low_var_kl:
      break;
  }
  const auto bounded = difference.neg().clamp(-20.0, 20.0);
  // expm1: near 0 the estimate is a small difference of large numbers.
  return bounded.expm1().sub(bounded).clamp(-10.0, 10.0);
}

LossTerms PolicyLoss::operator()(const PolicyTokens& input) const {
  check_config(config);
  const auto tokens = response_tokens(input.response_mask, input.cu_seqlens);
  const auto log_prob = tokens.select(input.log_probs, "log_probs");
  const auto advantages = tokens.select(input.advantages, "advantages");
  auto log_ratio = log_prob.sub(tokens.select(input.old_log_probs, "old_log_probs"));

  PolicyGradient gradient;
  if (config.mode == PolicyLossMode::vanilla) {
    log_ratio = log_ratio.clamp(-20.0, 20.0);
    gradient = vanilla(log_ratio, advantages, config);
  } else {
    gradient = gspo(log_prob, log_ratio, advantages, tokens, config);
  }
  if (input.rollout_is_weights.defined())
    gradient.losses = gradient.losses.mul(tokens.select(input.rollout_is_weights, "rollout_is_weights"));

  Terms terms;
  const auto policy = agg_loss(gradient.losses, tokens, config.aggregation);
  terms.add("loss", policy, true);
  terms.add("actor/pg_loss", policy, false);
  const auto add_penalty = [&](const char* name, const Tensor& losses, double coefficient) {
    const auto penalty = agg_loss(losses, tokens, config.aggregation);
    auto& total = terms.all.front().sum;
    if (coefficient != 0) total = total.add(penalty.sum.mul(coefficient));
    terms.add(name, penalty, false);
  };
  check_user(config.entropy_coeff == 0 || input.entropy.defined(), "RL loss: entropy_coeff is ",
             config.entropy_coeff, " but the input has no entropy; set EngineConfig::calculate_entropy.");
  if (input.entropy.defined())
    add_penalty("actor/entropy_loss", tokens.select(input.entropy, "entropy"), -config.entropy_coeff);
  check_user(config.kl_loss_coef == 0 || input.ref_log_prob.defined(), "RL loss: kl_loss_coef is ",
             config.kl_loss_coef,
             " but the input has no ref_log_prob; score the batch with a reference model.");
  if (input.ref_log_prob.defined()) {
    const auto reference = tokens.select(input.ref_log_prob, "ref_log_prob");
    add_penalty("kl_loss", kl_penalty(log_prob, reference, config.kl_loss_type), config.kl_loss_coef);
  }
  terms.add_mean("actor/pg_clipfrac", gradient.clipped, tokens);
  terms.add_mean("actor/ppo_kl", log_ratio.neg(), tokens);
  terms.add_mean("actor/pg_clipfrac_lower", gradient.clipped_lower, tokens);
  return std::move(terms.all);
}

LossTerms ValueLoss::operator()(const ValueTokens& input) const {
  if (config.cliprange_value) check_not_negative(*config.cliprange_value, "cliprange_value");
  const auto tokens = response_tokens(input.response_mask, input.cu_seqlens);
  const auto vpreds = tokens.select(input.vpreds, "vpreds");
  const auto returns = tokens.select(input.returns, "returns");
  const auto plain = vpreds.sub(returns).square();
  auto clipped = plain;
  if (config.cliprange_value) {
    const auto values = tokens.select(input.values, "values");
    const auto bounded =
        vpreds.maximum(values.sub(*config.cliprange_value)).minimum(values.add(*config.cliprange_value));
    clipped = bounded.sub(returns).square();
  }
  const auto loss = agg_loss(plain.maximum(clipped).mul(0.5), tokens, config.aggregation);
  Terms terms;
  terms.add("critic/vf_loss", loss, true);
  terms.add_mean("critic/vf_clipfrac", clipped.gt(plain), tokens);
  terms.add_mean("critic/vpred_mean", vpreds, tokens);
  return std::move(terms.all);
}

namespace {

Tensor response_mask_of(const Batch& batch) {
  const auto mask = batch.token_fields.find("response_mask");
  return mask.defined() ? mask : batch.loss_mask;
}

}  // namespace

LossTerms PolicyLoss::operator()(const LossInput& input) const {
  const auto& fields = input.batch.token_fields;
  return (*this)(PolicyTokens{input.log_probs, input.entropy, response_mask_of(input.batch),
                              input.batch.cu_seqlens, fields.at("old_log_probs"), fields.at("advantages"),
                              fields.find("ref_log_prob"), fields.find("rollout_is_weights")});
}

LossTerms ValueLoss::operator()(const ValueLossInput& input) const {
  const auto& fields = input.batch.token_fields;
  return (*this)(ValueTokens{input.values, response_mask_of(input.batch), input.batch.cu_seqlens,
                             config.cliprange_value ? fields.at("values") : Tensor(), fields.at("returns")});
}

}  // namespace mgfl::rl
