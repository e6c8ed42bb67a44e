// Advantages against verl's numbers, on padded rows and on responses laid end to end.
#include <cmath>
#include <random>

#include "mgfl/base/error.hpp"
#include "tests/unit/rl/verl_fixture.hpp"

using namespace mgfl;
using namespace mgfl::rl;
using namespace rl_tests;

namespace {

/// One prompt's responses of one token each.
struct Scores {
  explicit Scores(numbers scores)
      : responses{tensor(scores), tensor(numbers(scores.size(), 1.0)),
                  borders(std::vector<std::int64_t>(scores.size(), 1))},
        index(scores.size(), 7) {}
  Responses responses;
  std::vector<std::int64_t> index;
};

/// Every estimator by verl's name.
std::map<std::string, Advantages> all_estimators(const VerlFixture& verl, const Rows& rows) {
  const auto responses = verl.responses(rows);
  const auto index = verl.index_of(rows);
  const double gamma = verl.data["inputs"]["gamma"], lam = verl.data["inputs"]["lam"];
  return {{"gae", compute_gae_advantage_return(responses, verl.input(rows, "values"), gamma, lam)},
          {"grpo", compute_grpo_outcome_advantage(responses, index)},
          {"grpo_no_std", compute_grpo_outcome_advantage(responses, index, false)},
          {"rloo", compute_rloo_outcome_advantage(responses, index)},
          {"opo", compute_opo_outcome_advantage(responses, index)},
          {"reinforce_plus_plus", compute_reinforce_plus_plus_outcome_advantage(responses, gamma)},
          {"reinforce_plus_plus_baseline",
           compute_reinforce_plus_plus_baseline_outcome_advantage(responses, index)}};
}

}  // namespace

TEST_CASE("every estimator gives verl's advantages and returns, at every position") {
  for (const char* file : {"rl.json", "rl_observations.json"}) {
    const VerlFixture verl(file);
    for (const auto& rows : {verl.padded(), verl.unpadded()}) {
      for (const auto& estimator : all_estimators(verl, rows)) {
        const auto& name = estimator.first;
        const auto& got = estimator.second;
        CAPTURE(file);
        CAPTURE(name);
        for (const auto& entry : verl.data.at(name).items()) {
          const auto& key = entry.key();
          CAPTURE(key);
          CHECK(largest_difference(key == "returns" ? got.returns : got.advantages,
                                   rows.pack(entry.value())) < verl_bound);
        }
      }
    }
  }
}

TEST_CASE("prompts in front change no advantage") {
  const VerlFixture verl;
  const auto rows = verl.unpadded();
  const auto with_prompt = [&](const Tensor& packed, double filler) {
    numbers flat;
    const auto all = values(packed);
    std::size_t at = 0;
    for (std::size_t i = 0; i < rows.row.size(); ++i) {
      flat.insert(flat.end(), i + 1, filler);
      for (std::int64_t t = 0; t < rows.length[i]; ++t) flat.push_back(all[at++]);
    }
    return tensor(flat);
  };
  auto lengths = rows.length;
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] += static_cast<std::int64_t>(i) + 1;
  const auto alone = verl.responses(rows);
  const Responses prompted{with_prompt(alone.token_level_rewards, 0.0), with_prompt(alone.response_mask, 0.0),
                           borders(lengths)};
  const auto keep = response_tokens(prompted.response_mask, prompted.cu_seqlens);
  const auto value = verl.input(rows, "values");
  const auto expected = compute_gae_advantage_return(alone, value, 0.99, 0.95);
  const auto got = compute_gae_advantage_return(prompted, with_prompt(value, NAN), 0.99, 0.95);
  CHECK(largest_difference(keep.select(got.advantages, ""), expected.advantages) == 0.0);
  CHECK(largest_difference(keep.select(got.returns, ""), expected.returns) == 0.0);
  const auto index = verl.index_of(rows);
  CHECK(largest_difference(keep.select(compute_opo_outcome_advantage(prompted, index).advantages, ""),
                           compute_opo_outcome_advantage(alone, index).advantages) == 0.0);
}

TEST_CASE("GAE of a short response is the sum of discounted errors") {
  // delta = r + gamma V' - V; advantages are sums of (gamma lam)^k delta.
  const Responses responses{tensor({0.5, 0.0, 1.0}), tensor({1, 1, 1}), borders({3})};
  const double gamma = 0.9, lam = 0.8;
  const auto got = compute_gae_advantage_return(responses, tensor({0.2, -0.4, 0.6}), gamma, lam, false);
  const double d0 = 0.5 + gamma * -0.4 - 0.2, d1 = gamma * 0.6 + 0.4, d2 = 1.0 - 0.6;
  const double a1 = d1 + gamma * lam * d2, a0 = d0 + gamma * lam * a1;
  CHECK(largest_difference(got.advantages, tensor({a0, a1, d2})) < 1e-15);
  CHECK(largest_difference(got.returns, tensor({a0 + 0.2, a1 - 0.4, d2 + 0.6})) < 1e-15);
}

TEST_CASE("whitening over ranks that reduce their totals is whitening of the whole") {
  const VerlFixture verl;
  const auto rows = verl.unpadded();
  const double gamma = 0.99, lam = 0.95;
  // Ranks hold whole groups; one holds nothing.
  const std::vector<std::vector<std::size_t>> ranks{{0, 1}, {}, {2, 3, 4, 5}};
  const auto estimate = [&](const Rows& part, int which, ReduceTotals reduce) {
    const auto responses = verl.responses(part);
    const auto index = verl.index_of(part);
    if (which == 0)
      return compute_gae_advantage_return(responses, verl.input(part, "values"), gamma, lam, true, reduce);
    if (which == 1) return compute_reinforce_plus_plus_outcome_advantage(responses, gamma, reduce);
    return compute_reinforce_plus_plus_baseline_outcome_advantage(responses, index, reduce);
  };
  for (int which = 0; which < 3; ++which) {
    auto sum = zeros({3}, at::kDouble);
    const auto collect = [&](Tensor& totals) {
      sum = sum.add(totals);
      totals.copy_(tensor({0, 2, 2}));  // anything that can be whitened with
    };
    for (const auto& places : ranks) estimate(rows.subset(places), which, collect);
    const auto give = [&](Tensor& totals) { totals.copy_(sum); };
    numbers together;
    for (const auto& places : ranks)
      for (const double value : values(estimate(rows.subset(places), which, give).advantages))
        together.push_back(value);
    CHECK(largest_difference(tensor(together), estimate(rows, which, {}).advantages) < 1e-14);
  }
}

TEST_CASE("whitened values have mean 0 and unbiased variance 1") {
  std::mt19937 random(5);
  std::normal_distribution<double> normal(100.0, 3.0);
  numbers x(1000), mask(1000, 1.0);
  for (auto& value : x) value = normal(random);
  for (std::size_t i = 0; i < x.size(); i += 3) {
    mask[i] = 0;
    x[i] = 1e9;
  }
  const auto totals = masked_totals(tensor(x), tensor(mask));
  const auto white = values(masked_whiten(tensor(x), totals));
  double sum = 0, squares = 0, count = 0;
  for (std::size_t i = 0; i < white.size(); ++i) {
    sum += mask[i] * white[i];
    squares += mask[i] * white[i] * white[i];
    count += mask[i];
  }
  CHECK(std::abs(sum / count) < 1e-12);
  CHECK(squares / (count - 1) == doctest::Approx(1.0).epsilon(1e-8));
}

TEST_CASE("group statistics are exact and know no order") {
  // Scores of one group, 0.1 apart: mean 0.3, unbiased variance 0.025.
  const Scores five({0.5, 0.1, 0.3, 0.2, 0.4});
  const double std = std::sqrt(0.025);
  CHECK(largest_difference(compute_grpo_outcome_advantage(five.responses, five.index).advantages,
                           tensor({0.2, -0.2, 0.0, -0.1, 0.1}).div(std + 1e-6)) < 1e-14);
  CHECK(largest_difference(compute_rloo_outcome_advantage(five.responses, five.index).advantages,
                           tensor({0.25, -0.25, 0.0, -0.125, 0.125})) < 1e-15);
  CHECK(largest_difference(compute_opo_outcome_advantage(five.responses, five.index).advantages,
                           tensor({0.2, -0.2, 0.0, -0.1, 0.1})) < 1e-15);
  const Scores again({0.1, 0.2, 0.3, 0.4, 0.5});
  const auto a = values(compute_grpo_outcome_advantage(five.responses, five.index).advantages),
             b = values(compute_grpo_outcome_advantage(again.responses, again.index).advantages);
  CHECK(numbers{a[1], a[3], a[2], a[4], a[0]} == b);

  // Where all answers earn the same there is nothing to learn: no rounding error over epsilon.
  const Scores equal(numbers(7, 0.1));
  for (const auto& got : {compute_grpo_outcome_advantage(equal.responses, equal.index),
                          compute_rloo_outcome_advantage(equal.responses, equal.index),
                          compute_opo_outcome_advantage(equal.responses, equal.index)})
    CHECK(values(got.advantages) == numbers(7, 0.0));
}

TEST_CASE("a response alone in its group is compared with 0") {
  const Scores one({0.75});
  CHECK(values(compute_grpo_outcome_advantage(one.responses, one.index).advantages) ==
        numbers{0.75 / (1 + 1e-6)});
  CHECK(values(compute_rloo_outcome_advantage(one.responses, one.index).advantages) == numbers{0.75});
  CHECK(values(compute_opo_outcome_advantage(one.responses, one.index).advantages) == numbers{0.75});
}

TEST_CASE("responses without tokens and batches without responses give no NaN") {
  const std::vector<std::int64_t> index{3, 3};
  const Responses empty_responses{tensor({0, 0}), tensor({0, 0}), borders({1, 1})};
  CHECK(values(compute_opo_outcome_advantage(empty_responses, index).advantages) == numbers{0, 0});
  const Responses nothing{tensor({}), tensor({}), borders({})};
  CHECK(compute_grpo_outcome_advantage(nothing, {}).advantages.numel() == 0);
  CHECK(compute_gae_advantage_return(nothing, tensor({}), 1, 1, false).returns.numel() == 0);
}

TEST_CASE("wrong inputs of advantages are named with their values") {
  const Responses good{tensor({0, 1, 2}), tensor({1, 1, 0}), borders({2, 1})};
  const std::vector<std::int64_t> index{1, 2}, short_index{1};
  CHECK_THROWS_WITH_AS(compute_grpo_outcome_advantage(good, short_index),
                       "advantages: index names the groups of 1 sequences; there are 2.", UserError);
  CHECK_THROWS_WITH_AS(compute_grpo_outcome_advantage(good, index, true, 0.0),
                       "advantages: epsilon is 0; give a positive number.", UserError);
  CHECK_THROWS_WITH_AS(compute_gae_advantage_return(good, tensor({1, 2}), 1, 1),
                       "advantages: values has 2 values for 3 tokens.", UserError);
  CHECK_THROWS_WITH_AS(compute_gae_advantage_return(good, tensor({1, NAN, 1}), 1, 1),
                       "advantages: the value at position 1 is nan; the critic's values must be finite.",
                       UserError);
  CHECK_THROWS_WITH_AS(compute_gae_advantage_return(good, tensor({1, 1, 1}), 1.5, 1),
                       "advantages: gamma is 1.5; give a number from 0 to 1.", UserError);
  auto bad = good;
  bad.token_level_rewards = tensor({0, INFINITY, 0});
  CHECK_THROWS_WITH_AS(compute_rloo_outcome_advantage(bad, index),
                       "advantages: the reward at position 1 is inf; rewards must be finite.", UserError);
  bad = good;
  bad.response_mask = tensor({1, 0.5, 0});
  CHECK_THROWS_WITH_AS(compute_rloo_outcome_advantage(bad, index),
                       "response_mask is 0.5 at position 1; it must be 1 on response tokens and 0 elsewhere.",
                       UserError);
  bad = good;
  bad.cu_seqlens = borders({2, 2});
  CHECK_THROWS_WITH_AS(
      compute_rloo_outcome_advantage(bad, index),
      "response tokens: cu_seqlens runs from 0 to 4, expected from 0 to the 3 tokens of response_mask.",
      UserError);
  bad.cu_seqlens = borders({4, -1});
  CHECK_THROWS_WITH_AS(compute_rloo_outcome_advantage(bad, index),
                       "response tokens: cu_seqlens falls from 4 to 3 at sequence 1; it must not decrease.",
                       UserError);
  const Responses one{tensor({1}), tensor({1}), borders({1})};
  CHECK_THROWS_WITH_AS(compute_reinforce_plus_plus_outcome_advantage(one, 1.0),
                       "whitening needs two response tokens or more; the batch has 1; use a larger batch, or "
                       "advantages without whitening.",
                       UserError);
}
