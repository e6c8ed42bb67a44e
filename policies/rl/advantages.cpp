#include "policies/rl/advantages.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/rl/response_tokens.hpp"

namespace mgfl::rl {

namespace {

Tensor as_double(const Tensor& values) { return values.detach().to(at::kDouble).contiguous(); }

const double* data(const Tensor& values) { return values.const_data_ptr<double>(); }

void check_count(const Tensor& values, std::int64_t tokens, const char* name) {
  check_user(values.defined() && values.numel() == tokens, "advantages: ", name, " has ",
             values.defined() ? values.numel() : 0, " values for ", tokens, " tokens.");
}

/// Checked inputs in fp64.
struct View {
  explicit View(const Responses& responses)
      : tokens(response_tokens(responses.response_mask, responses.cu_seqlens)),
        mask_values(as_double(responses.response_mask)),
        borders_tensor(responses.cu_seqlens.contiguous()) {
    check_count(responses.token_level_rewards, tokens.packed_tokens, "token_level_rewards");
    reward_values = as_double(responses.token_level_rewards);
    for (std::int64_t t = 0; t < tokens.packed_tokens; ++t)
      check_user(std::isfinite(data(reward_values)[t]), "advantages: the reward at position ", t, " is ",
                 data(reward_values)[t], "; rewards must be finite.");
  }

  std::int64_t sequences() const { return tokens.num_sequences(); }
  std::int64_t begin(std::int64_t s) const { return borders_tensor.const_data_ptr<std::int32_t>()[s]; }
  std::int64_t end(std::int64_t s) const { return begin(s + 1); }
  double reward(std::int64_t t) const { return data(reward_values)[t]; }
  bool counts(std::int64_t t) const { return data(mask_values)[t] != 0; }

  ResponseTokens tokens;
  Tensor mask_values, borders_tensor, reward_values;
};

void check_discount(double value, const char* name) {
  check_user(value >= 0 && value <= 1, "advantages: ", name, " is ", value, "; give a number from 0 to 1.");
}

/// A group's sequences with their scores and response lengths.
struct Group {
  std::vector<std::int64_t> sequences;
  std::vector<double> scores, lengths;

  bool single() const { return sequences.size() == 1; }
  double size() const { return static_cast<double>(sequences.size()); }

  /// Mean with the given weights. Differences from the smallest score are averaged, in ascending order: equal
  /// scores give their value to the last bit, and the order of sequences changes nothing.
  double mean(const std::vector<double>& weights) const {
    std::vector<std::pair<double, double>> terms;
    for (std::size_t i = 0; i < scores.size(); ++i) terms.emplace_back(scores[i], weights[i]);
    std::sort(terms.begin(), terms.end());
    const double smallest = terms.front().first;
    double sum = 0, total = 0;
    for (const auto& [score, weight] : terms) {
      sum += (score - smallest) * weight;
      total += weight;
    }
    return total > 0 ? smallest + sum / total : smallest;
  }
  double mean() const { return mean(std::vector<double>(scores.size(), 1.0)); }

  double unbiased_std() const {
    const double center = mean();
    std::vector<double> squares;
    for (const double score : scores) squares.push_back((score - center) * (score - center));
    std::sort(squares.begin(), squares.end());
    double sum = 0;
    for (const double square : squares) sum += square;
    return std::sqrt(sum / (size() - 1));
  }
};

std::vector<Group> groups_of(const View& view, std::span<const std::int64_t> index) {
  check_user(static_cast<std::int64_t>(index.size()) == view.sequences(),
             "advantages: index names the groups of ", index.size(), " sequences; there are ",
             view.sequences(), ".");
  std::unordered_map<std::int64_t, std::size_t> place;
  std::vector<Group> groups;
  for (std::int64_t s = 0; s < view.sequences(); ++s) {
    const auto [entry, is_new] = place.try_emplace(index[static_cast<std::size_t>(s)], groups.size());
    if (is_new) groups.emplace_back();
    double score = 0;
    for (auto t = view.begin(s); t < view.end(s); ++t)
      if (view.counts(t)) score += view.reward(t);
    auto& group = groups[entry->second];
    group.sequences.push_back(s);
    group.scores.push_back(score);
    group.lengths.push_back(data(view.tokens.lengths)[s]);
  }
  return groups;
}

/// advantage_of(group, score) at every response token of the sequence.
template <class AdvantageOf>
Tensor outcome_advantages(const View& view, std::span<const std::int64_t> index, AdvantageOf advantage_of) {
  auto result = zeros({view.tokens.packed_tokens}, at::kDouble);
  auto* out = result.data_ptr<double>();
  for (const auto& group : groups_of(view, index)) {
    const auto advantages = advantage_of(group);
    for (std::size_t i = 0; i < group.sequences.size(); ++i)
      for (auto t = view.begin(group.sequences[i]); t < view.end(group.sequences[i]); ++t)
        if (view.counts(t)) out[t] = advantages[i];
  }
  return result;
}

/// (score - baseline) x factor, for each of a group's scores.
std::vector<double> scaled_differences(const Group& group, double baseline, double factor = 1) {
  auto result = group.scores;
  for (auto& score : result) score = (score - baseline) * factor;
  return result;
}

Tensor whiten(const Tensor& values, const View& view, const ReduceTotals& reduce) {
  auto totals = masked_totals(values, view.mask_values);
  if (reduce) (*reduce)(totals);
  return masked_whiten(values, totals);
}

}  // namespace

Tensor masked_totals(const Tensor& values, const Tensor& mask) {
  check_count(values, mask.numel(), "values");
  const auto x = as_double(values), weight = as_double(mask);
  auto totals = zeros({3}, at::kDouble);
  auto* total = totals.data_ptr<double>();
  for (std::int64_t t = 0; t < x.numel(); ++t) {
    if (data(weight)[t] == 0) continue;
    total[0] += data(x)[t];
    total[1] += data(x)[t] * data(x)[t];
    total[2] += 1;
  }
  return totals;
}

Tensor masked_whiten(const Tensor& values, const Tensor& totals) {
  const double count = data(totals)[2];
  check_user(count >= 2, "whitening needs two response tokens or more; the batch has ", count,
             "; use a larger batch, or advantages without whitening.");
  const double mean = data(totals)[0] / count;
  const double variance = std::max(data(totals)[1] - count * mean * mean, 0.0) / (count - 1);
  return values.sub(mean).div(std::sqrt(variance + 1e-8));
}

Advantages compute_gae_advantage_return(const Responses& responses, const Tensor& values, double gamma,
                                        double lam, bool whiten_advantages, ReduceTotals reduce) {
  const View view(responses);
  check_discount(gamma, "gamma");
  check_discount(lam, "lam");
  check_count(values, view.tokens.packed_tokens, "values");
  const auto value = as_double(values);
  auto advantages = zeros({view.tokens.packed_tokens}, at::kDouble);
  auto* out = advantages.data_ptr<double>();
  for (std::int64_t s = 0; s < view.sequences(); ++s) {
    double next_value = 0, last = 0;
    for (auto t = view.end(s) - 1; t >= view.begin(s); --t) {
      if (view.counts(t)) {
        const double current = data(value)[t];
        check_user(std::isfinite(current), "advantages: the value at position ", t, " is ", current,
                   "; the critic's values must be finite.");
        last = view.reward(t) + gamma * next_value - current + gamma * lam * last;
        next_value = current;
      }
      out[t] = last;
    }
  }
  auto returns = advantages.add(value);
  if (whiten_advantages) advantages = whiten(advantages, view, reduce);
  return {advantages, returns};
}

Advantages compute_grpo_outcome_advantage(const Responses& responses, std::span<const std::int64_t> index,
                                          bool norm_adv_by_std_in_grpo, double epsilon) {
  check_user(epsilon > 0, "advantages: epsilon is ", epsilon, "; give a positive number.");
  const auto advantages = outcome_advantages(View(responses), index, [&](const Group& group) {
    const double std = group.single() ? 1.0 : group.unbiased_std();
    return scaled_differences(group, group.single() ? 0.0 : group.mean(),
                              norm_adv_by_std_in_grpo ? 1 / (std + epsilon) : 1.0);
  });
  return {advantages, advantages};
}

Advantages compute_rloo_outcome_advantage(const Responses& responses, std::span<const std::int64_t> index) {
  const auto advantages = outcome_advantages(View(responses), index, [](const Group& group) {
    // score - (sum - score) / (n - 1) = (score - mean) n / (n - 1)
    return group.single() ? group.scores
                          : scaled_differences(group, group.mean(), group.size() / (group.size() - 1));
  });
  return {advantages, advantages};
}

Advantages compute_opo_outcome_advantage(const Responses& responses, std::span<const std::int64_t> index) {
  const auto advantages = outcome_advantages(View(responses), index, [](const Group& group) {
    return scaled_differences(group, group.single() ? 0.0 : group.mean(group.lengths));
  });
  return {advantages, advantages};
}

Advantages compute_reinforce_plus_plus_outcome_advantage(const Responses& responses, double gamma,
                                                         ReduceTotals reduce) {
  const View view(responses);
  check_discount(gamma, "gamma");
  auto returns = zeros({view.tokens.packed_tokens}, at::kDouble);
  auto* out = returns.data_ptr<double>();
  for (std::int64_t s = 0; s < view.sequences(); ++s) {
    double running = 0;
    for (auto t = view.end(s) - 1; t >= view.begin(s); --t)
      if (view.counts(t)) out[t] = running = view.reward(t) + gamma * running;
  }
  return {whiten(returns, view, reduce).mul(view.mask_values), returns};
}

Advantages compute_reinforce_plus_plus_baseline_outcome_advantage(const Responses& responses,
                                                                  std::span<const std::int64_t> index,
                                                                  ReduceTotals reduce) {
  const View view(responses);
  const auto differences = outcome_advantages(view, index, [](const Group& group) {
    return scaled_differences(group, group.single() ? 0.0 : group.mean());
  });
  const auto advantages = whiten(differences, view, reduce).mul(view.mask_values);
  return {advantages, advantages};
}

}  // namespace mgfl::rl
