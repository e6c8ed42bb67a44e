// Policy and value losses against verl's numbers, and their sums under every split of the batch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "mgfl/base/error.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/tensor/autograd.hpp"
#include "policies/kernels/kernels.hpp"
#include "tests/unit/rl/verl_fixture.hpp"

using namespace mgfl;
using namespace mgfl::rl;
using namespace rl_tests;

namespace {

const std::vector<std::string> mode_names{"token-mean", "token-sum", "seq-mean-token-sum",
                                          "seq-mean-token-mean", "seq-mean-token-sum-norm"};

/// verl's defaults for a padded batch of this length.
Aggregation aggregation_of(const std::string& mode, std::size_t time) {
  return {.mode = loss_agg_mode(mode), .loss_scale_factor = static_cast<double>(time)};
}

/// Sums of one micro-batch's terms, and the gradient of the main one.
struct Outcome {
  std::map<std::string, double> sum, count;
  std::map<std::string, bool> is_mean;  // false: nothing divides the sum
  std::vector<Tensor> gradients;        // of the main term's sum

  double divisor(const std::string& name) const { return is_mean.at(name) ? count.at(name) : 1.0; }
  double value(const std::string& name) const { return sum.at(name) / divisor(name); }
};

/// Calls loss(leaves) with copies of `values` as leaves; `main` is the term that is differentiated.
Outcome differentiate(const std::string& main, const std::vector<Tensor>& values,
                      const std::function<LossTerms(const std::vector<Tensor>&)>& loss) {
  std::vector<Tensor> leaves;
  for (const auto& value : values) leaves.push_back(make_leaf(value));
  Outcome outcome;
  GradGuard grad;
  Tensor total;
  for (const auto& term : loss(leaves)) {
    CHECK(term.is_loss == (term.name == main));
    if (term.is_loss) total = term.sum;
    outcome.sum[term.name] = term.sum.item<double>();
    outcome.count[term.name] = term.count;
    outcome.is_mean[term.name] = term.aggregation == MetricAggregation::mean;
  }
  outcome.gradients = gradients(total, leaves);
  return outcome;
}

double value_of(const SumAndCount& part) {
  const auto sum = part.sum.item<double>();
  return part.aggregation == MetricAggregation::mean ? sum / part.count : sum;
}

/// Entropies that go with the fixture's log-probabilities; any numbers do.
Tensor some_entropy(const Tensor& log_probs) { return log_probs.mul(-0.7).add(0.3); }

Outcome policy_loss(const VerlFixture& verl, const Rows& rows, const PolicyLossConfig& config,
                    bool with_parts = true) {
  const auto log_probs = verl.input(rows, "log_prob");
  return differentiate("loss", {log_probs, some_entropy(log_probs)}, [&](const std::vector<Tensor>& leaves) {
    return PolicyLoss{config}({.log_probs = leaves[0],
                               .entropy = with_parts ? leaves[1] : Tensor(),
                               .response_mask = verl.input(rows, "response_mask"),
                               .cu_seqlens = rows.cu_seqlens(),
                               .old_log_probs = verl.input(rows, "old_log_prob"),
                               .advantages = verl.input(rows, "advantages"),
                               .ref_log_prob = with_parts ? verl.input(rows, "ref_log_prob") : Tensor(),
                               .rollout_is_weights = {}});
  });
}

Outcome value_loss(const VerlFixture& verl, const Rows& rows, const ValueLossConfig& config) {
  return differentiate("critic/vf_loss", {verl.input(rows, "vpreds")},
                       [&](const std::vector<Tensor>& leaves) {
                         return ValueLoss{config}({.vpreds = leaves[0],
                                                   .response_mask = verl.input(rows, "response_mask"),
                                                   .cu_seqlens = rows.cu_seqlens(),
                                                   .values = verl.input(rows, "values"),
                                                   .returns = rows.pack(verl.data["gae"]["returns"])});
                       });
}

/// Random micro-batches on random ranks: places of sequences, in any order, some empty.
std::vector<std::vector<std::size_t>> random_split(std::size_t sequences, std::mt19937& random) {
  std::vector<std::vector<std::size_t>> parts(1 + random() % 7);
  std::vector<std::size_t> order(sequences);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (const auto place : order) parts[random() % parts.size()].push_back(place);
  return parts;
}

/// Checks that sums, counts and gradients of parts add up to those of the whole batch.
template <class Loss>
void check_splits(const VerlFixture& verl, const std::vector<std::string>& terms, Loss loss) {
  const auto rows = verl.unpadded();
  const auto whole = loss(rows);
  std::mt19937 random(11);
  for (int trial = 0; trial < 20; ++trial) {
    Outcome total;
    std::vector<numbers> gradient_of_row(verl.batch_size());
    for (const auto& part : random_split(rows.row.size(), random)) {
      const auto some = rows.subset(part);
      const auto outcome = loss(some);
      for (const auto& name : terms) {
        total.sum[name] += outcome.sum.at(name);
        total.count[name] += outcome.count.at(name);
      }
      const auto gradient = values(outcome.gradients[0]);
      std::size_t at = 0;
      for (std::size_t i = 0; i < some.row.size(); ++i)
        for (std::int64_t t = 0; t < some.length[i]; ++t)
          gradient_of_row[some.row[i]].push_back(gradient[at++]);
    }
    for (const auto& name : terms) {
      CAPTURE(name);
      CHECK(std::abs(total.sum[name] - whole.sum.at(name)) <= 1e-13 * (1 + std::abs(whole.sum.at(name))));
      CHECK(total.count[name] == whole.count.at(name));
    }
    numbers together;
    for (const auto& row : gradient_of_row) together.insert(together.end(), row.begin(), row.end());
    CHECK(largest_difference(tensor(together), whole.gradients[0]) < 1e-13);
  }
}

/// Central differences of f at `at`, in double.
numbers finite_differences(const numbers& at, const std::function<double(const numbers&)>& f) {
  numbers result;
  constexpr double step = 1e-6;
  for (std::size_t i = 0; i < at.size(); ++i) {
    auto up = at, down = at;
    up[i] += step;
    down[i] -= step;
    result.push_back((f(up) - f(down)) / (2 * step));
  }
  return result;
}

}  // namespace

TEST_CASE("policy losses, their gradients and metrics are verl's") {
  for (const char* file : {"rl.json", "rl_observations.json"}) {
    const VerlFixture verl(file);
    for (const auto& entry : verl.data["policy_loss"]) {
      PolicyLossConfig config;
      REQUIRE((entry["kind"] == "vanilla" || entry["kind"] == "gspo"));
      config.mode = entry["kind"] == "gspo" ? PolicyLossMode::gspo : PolicyLossMode::vanilla;
      config.clip_ratio_low = entry["clip_low"];
      config.clip_ratio_high = entry["clip_high"];
      config.clip_ratio_c = entry["clip_ratio_c"];
      config.aggregation = aggregation_of(entry["loss_agg_mode"], verl.time());
      CAPTURE(entry["kind"].get<std::string>());
      CAPTURE(entry["loss_agg_mode"].get<std::string>());
      for (const auto& rows : {verl.padded(), verl.unpadded()}) {
        for (const bool with_parts : {false, true}) {
          const auto got = policy_loss(verl, rows, config, with_parts);
          CHECK(std::abs(got.value("loss") - entry["loss"].get<double>()) < verl_bound);
          CHECK(std::abs(got.value("actor/pg_loss") - entry["loss"].get<double>()) < verl_bound);
          CHECK(largest_difference(got.gradients[0].div(got.divisor("loss")),
                                   rows.pack(entry["grad_log_prob"])) < verl_bound);
          for (const char* name : {"pg_clipfrac", "ppo_kl", "pg_clipfrac_lower"}) {
            CAPTURE(name);
            CHECK(std::abs(got.value(concat("actor/", name)) - entry[name].get<double>()) < verl_bound);
          }
        }
      }
    }
  }
}

TEST_CASE("value losses, their gradients and clip fractions are verl's") {
  for (const char* file : {"rl.json", "rl_observations.json"}) {
    const VerlFixture verl(file);
    for (const auto& entry : verl.data["value_loss"]) {
      REQUIRE(entry["returns"] == "gae.returns");
      const ValueLossConfig config{entry["cliprange_value"],
                                   aggregation_of(entry["loss_agg_mode"], verl.time())};
      for (const auto& rows : {verl.padded(), verl.unpadded()}) {
        const auto got = value_loss(verl, rows, config);
        CHECK(std::abs(got.value("critic/vf_loss") - entry["loss"].get<double>()) < verl_bound);
        CHECK(std::abs(got.value("critic/vf_clipfrac") - entry["clipfrac"].get<double>()) < verl_bound);
        CHECK(largest_difference(got.gradients[0].div(got.divisor("critic/vf_loss")),
                                 rows.pack(entry["grad_vpreds"])) < verl_bound);
      }
    }
  }
}

TEST_CASE("KL estimates are verl's") {
  for (const char* file : {"rl.json", "rl_observations.json"}) {
    const VerlFixture verl(file);
    for (const auto& entry : verl.data["kl_penalty"].items()) {
      const auto& name = entry.key();
      CAPTURE(name);
      const auto rows = verl.padded();
      CHECK(largest_difference(kl_penalty(verl.input(rows, "log_prob"), verl.input(rows, "ref_log_prob"),
                                          kl_penalty_named(name)),
                               rows.pack(entry.value())) < verl_bound);
    }
  }
}

TEST_CASE("aggregated losses are verl's, of one batch and of a share of a larger one") {
  for (const char* file : {"rl.json", "rl_observations.json"}) {
    const VerlFixture verl(file);
    const auto rows = verl.unpadded();
    const auto tokens = response_tokens(verl.input(rows, "response_mask"), rows.cu_seqlens());
    const auto loss = tokens.select(verl.input(rows, "advantages"), "advantages");
    const auto& global = verl.data["agg_loss_global"];
    for (const auto& entry : verl.data["agg_loss"].items()) {
      const auto& name = entry.key();
      CAPTURE(name);
      const auto got = agg_loss(loss, tokens, aggregation_of(name, verl.time()));
      CHECK(std::abs(value_of(got) - entry.value().get<double>()) < verl_bound);
      // verl multiplies by dp_size because its gradients are averaged over ranks afterwards.
      const double count = name == "token-sum"    ? 1.0
                           : name == "token-mean" ? global["batch_num_tokens"].get<double>()
                                                  : global["global_batch_size"].get<double>();
      CHECK(std::abs(got.sum.item<double>() / count * global["dp_size"].get<double>() -
                     global[name].get<double>()) < verl_bound);
    }
  }
}

TEST_CASE("the entropy of logits, aggregated, is verl's") {
  for (const char* file : {"rl.json", "rl_observations.json"}) {
    const VerlFixture verl(file);
    numbers flat;
    std::size_t vocabulary = 0;
    for (const auto& row : verl.data["entropy"]["logits"])
      for (const auto& token : row) {
        vocabulary = token.size();
        for (const auto& logit : token) flat.push_back(logit.get<double>());
      }
    const auto count = static_cast<std::int64_t>(flat.size() / vocabulary);
    const auto logits = tensor(flat).reshape({count, static_cast<std::int64_t>(vocabulary)});
    auto largest = zeros({count}, at::kDouble), sum_exp = zeros({count}, at::kDouble),
         sum_exp_z = zeros({count}, at::kDouble), predicted = zeros({count}, at::kDouble);
    dispatch<targets::vocab_row_statistics>(logits, zeros({count}, at::kLong),
                                            zeros({count}, at::kDouble).fill_(1.0), std::int64_t{0}, largest,
                                            sum_exp, sum_exp_z, predicted);
    const auto rows = verl.padded();
    const auto tokens = response_tokens(verl.input(rows, "response_mask"), rows.cu_seqlens());
    const auto entropy = tokens.select(sum_exp.log().sub(sum_exp_z.div(sum_exp)), "entropy");
    const auto got = agg_loss(entropy, tokens, {});
    CHECK(std::abs(value_of(got) - verl.data["entropy"]["loss"].get<double>()) < verl_bound);
  }
}

TEST_CASE("losses are the same however sequences are split over micro-batches and ranks") {
  const VerlFixture verl("rl_observations.json");
  for (const auto& name : mode_names) {
    CAPTURE(name);
    auto aggregation = aggregation_of(name, verl.time());
    for (const bool masked_count : {false, true}) {
      aggregation.count_masked_sequences = masked_count;
      for (const auto mode : {PolicyLossMode::vanilla, PolicyLossMode::gspo}) {
        PolicyLossConfig config;
        config.mode = mode;
        config.entropy_coeff = 0.01;
        config.kl_loss_coef = 0.3;
        config.aggregation = aggregation;
        check_splits(verl,
                     {"loss", "actor/pg_loss", "actor/entropy_loss", "kl_loss", "actor/pg_clipfrac",
                      "actor/ppo_kl", "actor/pg_clipfrac_lower"},
                     [&](const Rows& rows) { return policy_loss(verl, rows, config); });
      }
      check_splits(verl, {"critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"},
                   [&](const Rows& rows) {
                     return value_loss(verl, rows, {0.2, aggregation});
                   });
    }
  }
}

TEST_CASE("the loss is the policy's, less the entropy, and the KL estimate more") {
  const VerlFixture verl;
  PolicyLossConfig config;
  config.entropy_coeff = 0.25;
  config.kl_loss_coef = 0.5;
  for (const auto mode : {LossAggMode::token_mean, LossAggMode::seq_mean_token_mean}) {
    config.aggregation.mode = mode;
    const auto got = policy_loss(verl, verl.unpadded(), config);
    CHECK(got.value("actor/entropy_loss") > 0.1);
    CHECK(got.value("kl_loss") > 0.1);
    CHECK(got.value("loss") ==
          doctest::Approx(got.value("actor/pg_loss") - 0.25 * got.value("actor/entropy_loss") +
                          0.5 * got.value("kl_loss"))
              .epsilon(1e-14));
  }
}

TEST_CASE("every aggregation mode is its formula") {
  // Responses of 2, 0, 1 and 3 tokens; one observation inside the last.
  const auto tokens = response_tokens(tensor({1, 1, 0, 1, 1, 0, 1, 1}), borders({2, 1, 1, 4}));
  const auto loss = tensor({1, 3, 10, 2, 4, 9});
  const auto value = [&](Aggregation aggregation) {
    const auto got = agg_loss(loss, tokens, aggregation);
    return value_of(got);
  };
  using enum LossAggMode;
  CHECK(value({token_mean}) == doctest::Approx(29.0 / 6));
  CHECK(value({.mode = token_sum}) == doctest::Approx(29.0));
  CHECK(value({seq_mean_token_sum}) == doctest::Approx(29.0 / 3));
  CHECK(value({.mode = seq_mean_token_sum, .count_masked_sequences = true}) == doctest::Approx(29.0 / 4));
  CHECK(value({seq_mean_token_mean}) == doctest::Approx((2.0 + 10.0 + 5.0) / 3));
  CHECK(value({.mode = seq_mean_token_sum_norm, .loss_scale_factor = 8}) == doctest::Approx(29.0 / 3 / 8));
}

TEST_CASE("unlike counts on ranks and micro-batches share one division") {
  // Two ranks with two micro-batches each; means of means would give 5.075.
  double sum = 0, count = 0;
  for (const auto& part : std::vector<numbers>{{1, 2, 3}, {10}, {0.5, 0.5, 0.5, 0.5, 2}, {7, 8}}) {
    const auto tokens =
        response_tokens(tensor(numbers(part.size(), 1.0)), borders({static_cast<std::int64_t>(part.size())}));
    const auto term = agg_loss(tensor(part), tokens, {});
    sum += term.sum.item<double>();
    count += term.count;
  }
  CHECK(sum / count == doctest::Approx(35.0 / 11));
}

TEST_CASE("gradients are those of finite differences, for every KL estimate") {
  const VerlFixture verl;
  const auto rows = verl.unpadded();
  PolicyLossConfig config;
  config.entropy_coeff = 0.05;
  config.kl_loss_coef = 0.4;
  for (const auto estimate : {KlPenalty::kl, KlPenalty::abs, KlPenalty::mse, KlPenalty::low_var_kl}) {
    config.kl_loss_type = estimate;
    for (const auto& name : mode_names) {
      config.aggregation = aggregation_of(name, verl.time());
      const auto loss_at = [&](const Tensor& log_probs, const Tensor& entropy) {
        return PolicyLoss{config}({log_probs, entropy, verl.input(rows, "response_mask"), rows.cu_seqlens(),
                                   verl.input(rows, "old_log_prob"), verl.input(rows, "advantages"),
                                   verl.input(rows, "ref_log_prob"), verl.input(rows, "values").abs()});
      };
      const auto log_probs = verl.input(rows, "log_prob"), entropy = some_entropy(log_probs);
      const auto got = differentiate("loss", {log_probs, entropy}, [&](const std::vector<Tensor>& leaves) {
        return loss_at(leaves[0], leaves[1]);
      });
      const auto by_log_prob = finite_differences(values(log_probs), [&](const numbers& x) {
        return loss_at(tensor(x), entropy)[0].sum.item<double>();
      });
      const auto by_entropy = finite_differences(values(entropy), [&](const numbers& x) {
        return loss_at(log_probs, tensor(x))[0].sum.item<double>();
      });
      CHECK(largest_difference(got.gradients[0], tensor(by_log_prob)) < 1e-6);
      CHECK(largest_difference(got.gradients[1], tensor(by_entropy)) < 1e-6);
    }
  }
  for (const double clip : {0.0, 0.2, 0.5}) {
    const ValueLossConfig value_config{clip, {LossAggMode::seq_mean_token_mean}};
    const auto returns = rows.pack(verl.data["gae"]["returns"]);
    const auto loss_at = [&](const Tensor& vpreds) {
      return ValueLoss{value_config}({vpreds, verl.input(rows, "response_mask"), rows.cu_seqlens(),
                                      verl.input(rows, "values"), returns});
    };
    const auto vpreds = verl.input(rows, "vpreds");
    const auto got = differentiate("critic/vf_loss", {vpreds},
                                   [&](const std::vector<Tensor>& leaves) { return loss_at(leaves[0]); });
    CHECK(
        largest_difference(got.gradients[0], tensor(finite_differences(values(vpreds), [&](const numbers& x) {
                             return loss_at(tensor(x))[0].sum.item<double>();
                           }))) < 1e-6);
  }
}

TEST_CASE("GSPO's gradient is that of the sequence's ratio where advantages are one number") {
  // d/dlog p of A exp(mean of log-ratios) = A ratio / tokens; stop-gradients must not lose it.
  const auto mask = tensor({1, 1, 1, 1, 1}), cu_seqlens = borders({3, 2});
  const auto log_probs = tensor({-1.0, -0.8, -1.3, -0.5, -0.4}),
             old = tensor({-1.1, -0.9, -1.2, -0.55, -0.3});
  const auto advantages = tensor({2, 2, 2, -1, -1});
  PolicyLossConfig config;
  config.mode = PolicyLossMode::gspo;
  config.aggregation.mode = LossAggMode::seq_mean_token_mean;
  const auto got = differentiate("loss", {log_probs}, [&](const std::vector<Tensor>& leaves) {
    return PolicyLoss{config}({leaves[0], {}, mask, cu_seqlens, old, advantages, {}, {}});
  });
  const double first = std::exp(0.1 / 3), second = std::exp(-0.05 / 2);
  CHECK(got.sum.at("loss") == doctest::Approx(-2 * first + second).epsilon(1e-14));
  CHECK(largest_difference(got.gradients[0], tensor({-2 * first / 3, -2 * first / 3, -2 * first / 3,
                                                     second / 2, second / 2})) < 1e-15);
}

TEST_CASE("dual clip bounds the loss of negative advantages alone") {
  // Ratios of e^3: clipped at 1.2 for the positive advantage, at 3 for the negative one.
  const auto terms = PolicyLoss{}(
      {tensor({0, 0}), {}, tensor({1, 1}), borders({2}), tensor({-3, -3}), tensor({1, -1}), {}, {}});
  CHECK(terms[0].sum.item<double>() == doctest::Approx(-1.2 + 3.0));
  const auto sum_of = [&](const char* name) {
    for (const auto& term : terms)
      if (term.name == name) return term.sum.item<double>();
    return -1.0;
  };
  CHECK(sum_of("actor/pg_clipfrac") == 1.0);
  CHECK(sum_of("actor/pg_clipfrac_lower") == 1.0);
}

TEST_CASE("nothing outside the mask is read, and an empty response adds nothing") {
  const VerlFixture verl;
  const auto rows = verl.padded();
  const auto mask = verl.input(rows, "response_mask");
  const auto spoiled = [&](const char* name) { return verl.input(rows, name).masked_fill(mask.eq(0), NAN); };
  for (const auto mode : {PolicyLossMode::vanilla, PolicyLossMode::gspo}) {
    PolicyLossConfig config;
    config.mode = mode;
    config.kl_loss_coef = 0.1;
    const auto loss = [&](const Tensor& response_mask) {
      return differentiate("loss", {spoiled("log_prob")}, [&](const std::vector<Tensor>& leaves) {
        return PolicyLoss{config}({leaves[0],
                                   {},
                                   response_mask,
                                   rows.cu_seqlens(),
                                   spoiled("old_log_prob"),
                                   spoiled("advantages"),
                                   spoiled("ref_log_prob"),
                                   {}});
      });
    };
    const auto got = loss(mask);
    CHECK(std::isfinite(got.value("loss")));
    CHECK(largest_difference(got.gradients[0], got.gradients[0].mul(mask)) == 0.0);
    const auto none = loss(mask.mul(0.0));
    for (const auto& [name, sum] : none.sum) {
      CHECK(sum == 0.0);
      CHECK(none.count.at(name) == 0.0);
    }
    CHECK(values(none.gradients[0]) == numbers(static_cast<std::size_t>(mask.numel()), 0.0));
  }
}

TEST_CASE("KL estimates stay finite and keep their digits") {
  // d = 1e-5: k3 is d^2 / 2 - d^3 / 6 + ...
  const double d = 1e-5;
  const auto got = values(kl_penalty(tensor({d, -40.0, 40.0}), tensor({0, 0, 0}), KlPenalty::low_var_kl));
  CHECK(got[0] == doctest::Approx(d * d / 2 - d * d * d / 6).epsilon(1e-6));
  CHECK(got[1] == 10.0);
  CHECK(got[2] == 10.0);
}

TEST_CASE("wrong settings and inputs of losses are named with their values") {
  const auto one = tensor({1});
  PolicyTokens input{one, {}, one, borders({1}), one, one, {}, {}};
  const auto loss = [&](PolicyLossConfig config) { return PolicyLoss{config}(input); };
  CHECK_THROWS_WITH_AS(
      loss_agg_mode("mean"),
      "there is no loss_agg_mode \"mean\"; choose one of token-mean, token-sum, seq-mean-token-sum, "
      "seq-mean-token-mean, seq-mean-token-sum-norm.",
      UserError);
  CHECK_THROWS_WITH_AS(kl_penalty_named("k4"),
                       "there is no KL estimate \"k4\"; choose one of kl, k1, abs, mse, k2, low_var_kl, k3.",
                       UserError);
  CHECK_THROWS_WITH_AS(loss({.clip_ratio_c = 1}), "RL loss: clip_ratio_c is 1; dual clip needs more than 1.",
                       UserError);
  CHECK_THROWS_WITH_AS(loss({.clip_ratio_low = -0.1}),
                       "RL loss: clip_ratio_low is -0.1; give a finite number of 0 or more.",
                       UserError);
  CHECK_THROWS_WITH_AS(loss({.entropy_coeff = 0.5}),
                       "RL loss: entropy_coeff is 0.5 but the input has no entropy; set "
                       "EngineConfig::calculate_entropy.",
                       UserError);
  CHECK_THROWS_WITH_AS(
      loss({.kl_loss_coef = 0.5}),
      "RL loss: kl_loss_coef is 0.5 but the input has no ref_log_prob; score the batch with a "
      "reference model.",
      UserError);
  CHECK_THROWS_WITH_AS(
      loss({.aggregation = {LossAggMode::seq_mean_token_sum_norm}}),
      "RL loss: seq-mean-token-sum-norm needs loss_scale_factor, such as the longest response "
      "allowed; it is 0.",
      UserError);
  input.advantages = tensor({1, 2});
  CHECK_THROWS_WITH_AS(loss({}), "response tokens: advantages has 2 values for 1 tokens.", UserError);
  input.advantages = Tensor();
  CHECK_THROWS_WITH_AS(loss({}), "response tokens: advantages is missing.", UserError);
}
