// Losses and metrics as (sum, count) terms: one division, each aggregation, any order, any split.
#include <cmath>
#include <functional>
#include <random>

#include "policies/rl/losses.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using test::doubles;
using test::error_of;
using test::Lengths;
using test::max_difference;

namespace {

using Fp64Engine = LanguageModelEngine<parallel::Self, optimizer::Fp64>;

Fp64Engine make_engine() {
  static const test::Fixture fixture("qwen3");
  EngineConfig config;
  config.calculate_entropy = true;
  return test::language_model<optimizer::Fp64>(fixture.folder, config);
}

/// Gradient and value of one toy token's log_prob.
struct OneToken {
  Tensor grad;
  double log_prob = 0;
};
OneToken one_token(Fp64Engine& engine) {
  OneToken result;
  result.grad = test::gradients_of(engine, test::toy_batch({1}), test::ToyLoss{});
  result.log_prob = engine.infer_batch(test::toy_batch({1})).log_probs[0].item<double>();
  engine.optimizer_zero_grad();
  return result;
}

Tensor number(double value) { return zeros({}, at::kDouble).fill_(value); }

/// Loss and gradient of the toy are `mean` times those of one token.
void check_toy(Fp64Engine& engine, const OneToken& one, const Batch& batch, double mean) {
  engine.optimizer_zero_grad();
  const auto result = engine.forward_backward_batch(batch, test::ToyLoss{});
  CHECK(result.loss() == doctest::Approx(mean * one.log_prob).epsilon(1e-13));
  CHECK(max_difference(engine.optimizer().main_grads(), one.grad.mul(mean)) < 1e-12);
  engine.optimizer_zero_grad();
}

/// Responses to prompts, drawn from the model itself: ratios are 1 and gradients are known by hand.
struct Responses {
  Batch batch;
  std::vector<double> advantages, mask;
  Lengths lengths;
};

Responses responses(Fp64Engine& engine) {
  std::mt19937_64 random(21);
  Responses result;
  result.lengths = {7, 4, 9, 5, 6, 3};
  result.batch = test::random_batch(random, result.lengths, engine.config().vocab_size);
  for (std::size_t s = 0; s < result.lengths.size(); ++s)
    for (std::int64_t t = 0; t < result.lengths[s]; ++t) {
      // two tokens of prompt, the last predicts nothing, and sequence 3 has no response
      const bool counts = t >= 2 && t + 1 < result.lengths[s] && s != 3;
      result.mask.push_back(counts ? 1 : 0);
      result.advantages.push_back(std::cos(0.9 * static_cast<double>(result.mask.size())));
    }
  result.batch.loss_mask = test::floats(result.mask);
  result.batch.token_fields.set("advantages", doubles(result.advantages));
  result.batch.token_fields.set("old_log_probs", engine.infer_batch(result.batch).log_probs);
  return result;
}

/// What each token's loss is multiplied with, by the definition of the mode.
std::vector<double> factors(const Responses& data, rl::LossAggMode mode, double scale, bool count_masked) {
  double tokens = 0, sequences = 0;
  std::vector<double> own(data.lengths.size());
  std::size_t t = 0;
  for (std::size_t s = 0; s < data.lengths.size(); ++s) {
    for (std::int64_t i = 0; i < data.lengths[s]; ++i) own[s] += data.mask[t++];
    tokens += own[s];
    sequences += own[s] > 0 || count_masked;
  }
  std::vector<double> result;
  t = 0;
  for (std::size_t s = 0; s < data.lengths.size(); ++s)
    for (std::int64_t i = 0; i < data.lengths[s]; ++i, ++t) {
      double factor = 0;
      switch (mode) {
        case rl::LossAggMode::token_mean:
          factor = 1 / tokens;
          break;
        case rl::LossAggMode::token_sum:
          factor = 1;
          break;
        case rl::LossAggMode::seq_mean_token_sum:
          factor = 1 / sequences;
          break;
        case rl::LossAggMode::seq_mean_token_mean:
          factor = own[s] > 0 ? 1 / own[s] / sequences : 0;
          break;
        case rl::LossAggMode::seq_mean_token_sum_norm:
          factor = 1 / sequences / scale;
          break;
      }
      result.push_back(data.mask[t] * factor);
    }
  return result;
}

}  // namespace

TEST_CASE("A1: micro-batches with unlike token counts are one mean, not a mean of means") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  // {1, 2, 3} and {10, masked, masked}: 16 / 4; the mean of means would be 6
  const auto batch = test::toy_batch({1, 2, 3, 10, 50, 60}, {1, 1, 1, 1, 0, 0});
  for (const std::int64_t size : {3, 1, 2, 6})
    check_toy(engine, one, test::in_micro_batches_of(batch, size), 4.0);
  check_toy(engine, one, test::in_micro_batches_of(test::toy_batch({1, 2, 3, 10}), 4), 4.0);
}

TEST_CASE("A2: all sequences of two ranks on one, in four micro-batches") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  auto batch = test::toy_batch({1, 2, 3, 10, 0.5, 0.5, 0.5, 0.5, 2, 7, 8});
  batch.groups = test::longs({0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3});
  check_toy(engine, one, test::in_micro_batches_of(batch, 5), 35.0 / 11.0);
  check_toy(engine, one, test::under_cap(batch, 5), 35.0 / 11.0);
}

TEST_CASE("A4: a masked micro-batch adds exactly nothing") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  const auto batch = test::toy_batch({9, 9, 2, 4}, {0, 0, 1, 1});
  check_toy(engine, one, test::in_micro_batches_of(batch, 2), 3.0);
  const auto masked = test::gradients_of(engine, test::in_micro_batches_of(batch, 2), test::ToyLoss{});
  const auto alone =
      test::gradients_of(engine, test::in_micro_batches_of(test::toy_batch({2, 4}), 2), test::ToyLoss{});
  CHECK(max_difference(masked, alone) < 1e-15);
}

TEST_CASE("metrics: mean, sum, min and max over micro-batches, in the closure's order") {
  auto engine = make_engine();
  engine.initialize();
  const auto batch = test::in_micro_batches_of(test::toy_batch({4, -2, 7, 1, 3}), 2);
  const auto closure = [](const LossInput& input) -> LossTerms {
    const auto& a = input.batch.token_fields.at("a");
    const auto n = static_cast<double>(a.numel());
    return {{"largest", a.max(), 0, false, MetricAggregation::max},
            {"total", a.sum(), n, false, MetricAggregation::sum},
            {"loss", input.log_probs.sum(), n},
            {"mean of squares", a.mul(a).sum(), n, false},
            {"least", a.min(), 1, false, MetricAggregation::min},
            {"as float", a.sum().to(at::kFloat).view({1}), n, false}};
  };
  const auto result = engine.forward_backward_batch(batch, closure);
  CHECK(result.num_micro_batches == 3);
  CHECK(result.metric("largest") == 7.0);
  CHECK(result.metric("least") == -2.0);
  CHECK(result.metric("total") == 13.0);
  CHECK(result.metric("mean of squares") == doctest::Approx((16 + 4 + 49 + 1 + 9) / 5.0).epsilon(1e-15));
  CHECK(result.metric("as float") == doctest::Approx(13 / 5.0).epsilon(1e-15));
  CHECK(result.loss() == result.metric("loss"));
  std::vector<std::string> names;
  for (const auto& metric : result.metrics) names.push_back(metric.name);
  CHECK(names ==
        std::vector<std::string>{"largest", "total", "loss", "mean of squares", "least", "as float"});
  CHECK(error_of([&] { result.metric("lost"); }) ==
        "there is no metric \"lost\"; the loss reports largest, total, loss, mean of squares, least, as "
        "float.");
}

TEST_CASE("a NaN shows in every aggregation, whichever micro-batch has it") {
  auto engine = make_engine();
  engine.initialize();
  for (const int place : {0, 1, 2}) {
    std::vector<double> a{4, -2, 7};
    a[static_cast<std::size_t>(place)] = std::nan("");
    const auto result = engine.infer_batch(test::toy_batch(a), [](const LossInput& input) -> LossTerms {
      const auto sum = input.batch.token_fields.at("a").sum();
      return {{"mean", sum, 1.0},
              {"total", sum, 1.0, false, MetricAggregation::sum},
              {"least", sum, 1.0, false, MetricAggregation::min},
              {"largest", sum, 1.0, false, MetricAggregation::max}};
    });
    for (const auto& metric : result.metrics) {
      CAPTURE(metric.name);
      CHECK(std::isnan(metric.value()));
    }
  }
}

TEST_CASE("a term that is no loss is no divisor, wherever it stands") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  const auto batch = test::in_micro_batches_of(test::toy_batch({1, 2, 6}), 2);
  for (const bool first : {true, false}) {
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(batch, [&](const LossInput& input) -> LossTerms {
      LossTerms terms = test::ToyLoss{}(input);
      terms.insert(first ? terms.begin() : terms.end(),
                   {"seen", input.log_probs.mul(7).sum(), 1000.0, false});
      return terms;
    });
    CHECK(result.loss() == doctest::Approx(3 * one.log_prob).epsilon(1e-13));
    CHECK(max_difference(engine.optimizer().main_grads(), one.grad.mul(3)) < 1e-12);
  }
}

TEST_CASE("several terms that enter the gradient are added") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  const auto batch = test::in_micro_batches_of(test::toy_batch({1, 2, 6}), 2);
  const auto result = engine.forward_backward_batch(batch, [](const LossInput& input) -> LossTerms {
    const auto n = static_cast<double>(input.batch.num_tokens());
    auto terms = test::ToyLoss{}(input);
    terms.push_back({"entropy", input.entropy.sum(), n, false});
    terms.push_back({"more", input.log_probs.mul(-0.5).sum(), n});
    return terms;
  });
  CHECK(result.loss() == doctest::Approx(2.5 * one.log_prob).epsilon(1e-13));
  CHECK(result.metric("more") == doctest::Approx(-0.5 * one.log_prob).epsilon(1e-13));
  CHECK(max_difference(engine.optimizer().main_grads(), one.grad.mul(2.5)) < 1e-12);
}

TEST_CASE("a summed loss is not divided") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  for (const std::int64_t size : {1, 2, 3}) {
    engine.optimizer_zero_grad();
    const auto batch = test::in_micro_batches_of(test::toy_batch({1, 2, 6}), size);
    const auto result = engine.forward_backward_batch(batch, [](const LossInput& input) -> LossTerms {
      auto terms = test::ToyLoss{}(input);
      terms[0].aggregation = MetricAggregation::sum;
      return terms;
    });
    CHECK(result.loss() == doctest::Approx(9 * one.log_prob).epsilon(1e-13));
    CHECK(max_difference(engine.optimizer().main_grads(), one.grad.mul(9)) < 1e-12);
  }
}

TEST_CASE("terms that cannot be added up are refused in words, and the engine goes on") {
  auto engine = make_engine();
  engine.initialize();
  const auto one = one_token(engine);
  const auto batch = test::in_micro_batches_of(test::toy_batch({1, 2, 6}), 2);
  const auto refused = [&](const std::function<LossTerms(const LossInput&)>& closure,
                           bool forward_only = false) {
    const auto message = error_of([&] { engine.forward_backward_batch(batch, closure, forward_only); });
    engine.optimizer_zero_grad();
    return message;
  };
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"a", input.log_probs.sum(), 2.0}, {"b", input.log_probs.sum(), 3.0}};
        }) ==
        "loss closure: terms that enter the gradient have counts 2 and 3 in one micro-batch, or unlike "
        "aggregations; "
        "give them one count and put the ratio into the sum.");
  CHECK(test::contains(refused([](const LossInput& input) -> LossTerms {
                         return {{"a", input.log_probs.sum(), 2.0},
                                 {"b", input.log_probs.sum(), 2.0, true, MetricAggregation::sum}};
                       }),
                       "or unlike aggregations"));
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"a", input.log_probs.sum(), 2.0, true, MetricAggregation::max}};
        }) ==
        "loss closure: term \"a\" enters the gradient as a minimum or maximum; only means and sums do.");
  CHECK(refused(
            [](const LossInput& input) -> LossTerms {
              return {{"a", input.log_probs, 2.0, false}};
            },
            true) == "loss closure: the sum of term \"a\" has 2 elements; it must be one number.");
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"a", input.log_probs, 2.0}};
        }) == "loss closure: the sum of term \"a\" has 2 elements; it must be one number.");
  CHECK(refused([](const LossInput&) -> LossTerms {
          return {{"a", Tensor(), 2.0}};
        }) == "loss closure: the sum of term \"a\" has 0 elements; it must be one number.");
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"a", input.log_probs.sum(), 2.0}, {"b", Tensor(), 2.0}};
        }) == "loss closure: the sum of term \"b\" has 0 elements; it must be one number.");
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"", input.log_probs.sum(), 2.0}};
        }) == "loss closure: a term is named \"\"; give it a name of one line.");
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"a\nb", input.log_probs.sum(), 2.0}};
        }) == "loss closure: a term is named \"a\nb\"; give it a name of one line.");
  CHECK(refused([](const LossInput& input) -> LossTerms {
          return {{"a", input.log_probs.sum(), 2.0}, {"a", input.log_probs.sum(), 2.0}};
        }) == "loss closure: two terms are named \"a\"; give each a name of its own.");
  CHECK(refused([](const LossInput&) -> LossTerms { return {}; }) ==
        "loss closure: no term enters the gradient; mark one with is_loss, or call with forward_only.");
  int calls = 0;
  CHECK(refused([&](const LossInput& input) -> LossTerms {
          return {
              {"loss", input.log_probs.sum(), 1.0},
              {"a", number(1), 1.0, false, ++calls == 1 ? MetricAggregation::mean : MetricAggregation::max}};
        }) ==
        "loss closure: a micro-batch reports loss, a after others reported loss, a; return the same terms, "
        "with "
        "the same aggregation and is_loss, in every micro-batch, with sum 0 and count 0 where there is "
        "nothing.");
  CHECK(refused([](const LossInput&) -> LossTerms { return {}; }, true) == "(no error)");
  check_toy(engine, one, batch, 3.0);
}

TEST_CASE("a loss that does not depend on the outputs is refused where a gradient is due") {
  auto engine = make_engine();
  engine.initialize();
  const auto batch = test::in_micro_batches_of(test::toy_batch({1, 2, 6}), 2);
  const auto constant = [](const LossInput& input) -> LossTerms {
    return {{"loss", number(2), static_cast<double>(input.batch.num_tokens())}};
  };
  const auto detached = [](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.detach().sum(), static_cast<double>(input.batch.num_tokens())}};
  };
  CHECK(engine.forward_backward_batch(batch, constant, true).loss() == doctest::Approx(4.0 / 3.0));
  for (const auto& message :
       {test::error_of([&] { engine.forward_backward_batch(batch, constant); }), test::error_of([&] {
          engine.optimizer_zero_grad();
          engine.forward_backward_batch(batch, detached);
        })})
    CHECK(message ==
          "loss closure: the loss does not depend on the model's outputs, so there is nothing to learn; "
          "compute "
          "it from the closure's argument, without detach().");
  // Where nothing counts, there need not be anything to differentiate.
  engine.optimizer_zero_grad();
  const auto none = [](const LossInput&) -> LossTerms { return {{"loss", number(0), 0.0}}; };
  CHECK_NOTHROW(engine.forward_backward_batch(batch, none));
}

TEST_CASE("every aggregation of policy losses: value and gradient by hand, in any split") {
  auto engine = make_engine();
  engine.initialize();
  const auto data = responses(engine);
  const auto tokens = data.batch.num_tokens();
  for (const char* name :
       {"token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"})
    for (const bool count_masked : {false, true}) {
      CAPTURE(name);
      rl::PolicyLossConfig config;
      config.aggregation = {rl::loss_agg_mode(name), 4.0, count_masked};
      const auto factor = factors(data, config.aggregation.mode, 4.0, count_masked);
      // ratio 1 at every token: its loss is -A, and d loss / d log_prob is -A as well
      double expected = 0;
      std::vector<double> weight;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto i = static_cast<std::size_t>(t);
        weight.push_back(data.advantages[i] * factor[i]);
        expected -= weight.back();
      }
      auto by_hand = data.batch;
      by_hand.token_fields.set("a", doubles(weight).neg());
      by_hand.loss_mask = test::floats(std::vector<double>(static_cast<std::size_t>(tokens), 1.0));
      const auto grads = test::gradients_of(engine, by_hand, [](const LossInput& input) -> LossTerms {
        return {{"loss", input.log_probs.mul(input.batch.token_fields.at("a")).sum(), 1.0, true,
                 MetricAggregation::sum}};
      });
      CHECK(grads.abs().max().item<double>() > 1e-4);
      for (const auto& batch :
           {test::in_micro_batches_of(data.batch, 1), test::in_micro_batches_of(data.batch, 4),
            test::in_micro_batches_of(data.batch, 6), test::under_cap(data.batch, 10)}) {
        engine.optimizer_zero_grad();
        const auto result = engine.forward_backward_batch(batch, rl::PolicyLoss{config});
        CHECK(result.loss() == doctest::Approx(expected).epsilon(1e-12));
        CHECK(result.metric("actor/pg_loss") == doctest::Approx(expected).epsilon(1e-12));
        CHECK(max_difference(engine.optimizer().main_grads(), grads) < 1e-12);
      }
    }
}
