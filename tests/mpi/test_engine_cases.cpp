// What data-parallel ranks must not change: shares of any size, metrics, aggregation modes, critics,
// mini-batches, skipped steps.
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "policies/rl/losses.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using mgfl_test::same_bits_everywhere;
using test::below;
using test::doubles;
using test::Lengths;
using test::max_difference;
using test::numbers;

namespace {

/// This rank's groups, for one test.
struct Groups {
  parallel::Mpi world{mgfl_test::session()};
  parallel::Mpi alone = world.split(world.rank(), 0, "alone");

  int rank() const { return world.rank(); }
  int size() const { return world.size(); }
  bool last() const { return rank() + 1 == size(); }
  auto context() { return parallel::data_parallel_context(world, alone); }
};

template <class C, class P>
using Actor = LanguageModelEngine<C, P>;
template <class C, class P>
using Critic = ValueModelEngine<C, P>;

/// An initialized engine of all ranks, beside one that this rank has for itself.
template <class P, template <class, class> class Kind = Actor>
struct Both {
  Both(Groups& groups, const std::string& name, EngineConfig config = {},
       optimizer::OptimizerConfig optimizer = test::adam())
      : folder(test::Fixture(name).folder),
        ranks({folder, "", 1}, config, optimizer,
              test::constant_schedule(optimizer.lr, optimizer.weight_decay), groups.context()),
        one({folder, "", 1}, config, optimizer, test::constant_schedule(optimizer.lr, optimizer.weight_decay),
            test::self_context()) {
    ranks.initialize();
    one.initialize();
  }
  std::string folder;
  Kind<parallel::Mpi, P> ranks;
  Kind<parallel::Self, P> one;
};

/// Where each rank's share of `count` sequences begins and ends: at random, some ranks with nothing.
Lengths random_cuts(std::mt19937_64& random, std::int64_t count, int ranks) {
  Lengths cuts{0, count};
  for (int i = 1; i < ranks; ++i) cuts.push_back(below(random, count + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

Batch share(const Batch& batch, const Lengths& cuts, int rank) {
  return sequences_of(batch, cuts[static_cast<std::size_t>(rank)], cuts[static_cast<std::size_t>(rank) + 1]);
}

/// Shares of a test whose numbers do not matter: rank 0 has nothing, the last one most.
Lengths uneven_cuts(std::int64_t count, int ranks) {
  Lengths cuts{0};
  for (int rank = 0; rank < ranks; ++rank) cuts.push_back(rank + 1 == ranks ? count : rank);
  return cuts;
}

/// The tokens of this rank's share inside the whole batch's outputs.
Tensor own_part(const Tensor& whole, const Batch& batch, const Lengths& cuts, int rank) {
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  const auto first = borders[cuts[static_cast<std::size_t>(rank)]];
  return whole.narrow(0, first, borders[cuts[static_cast<std::size_t>(rank) + 1]] - first);
}

double number_of(bool value) { return value ? 1 : 0; }

}  // namespace

TEST_CASE(
    "shares of any size: loss, own outputs and all gradients are one rank's, in as many micro-batches") {
  Groups groups;
  Both<optimizer::Fp64> engines(groups, "qwen3");
  std::mt19937_64 random(41);  // the same on every rank
  int empty_shares = 0;
  for (int trial = 0; trial < 20; ++trial) {
    CAPTURE(trial);
    Lengths lengths(static_cast<std::size_t>(2 + below(random, 8)));
    for (auto& length : lengths) length = 2 + below(random, 12);
    auto batch = test::random_batch(random, lengths, 331);
    batch.loss_mask[0].fill_(1.0);
    const auto cuts = random_cuts(random, batch.num_sequences(), groups.size());
    for (int rank = 0; rank < groups.size(); ++rank)
      empty_shares += cuts[static_cast<std::size_t>(rank)] == cuts[static_cast<std::size_t>(rank) + 1];
    engines.one.optimizer_zero_grad();
    const auto expected = engines.one.forward_backward_batch(test::in_micro_batches_of(batch, 1), SftLoss{});
    for (const std::int64_t cap : {0, 14, 30}) {
      CAPTURE(cap);
      engines.ranks.optimizer_zero_grad();
      const auto mine = share(batch, cuts, groups.rank());
      const auto result = engines.ranks.forward_backward_batch(
          cap > 0 ? test::under_cap(mine, cap) : test::in_micro_batches_of(mine, 2), SftLoss{});
      CHECK(std::abs(result.loss() - expected.loss()) < 1e-11);
      CHECK(result.metrics.at(0).count == expected.metrics.at(0).count);
      CHECK(result.tokens == batch.num_tokens());
      CHECK(max_difference(result.log_probs, own_part(expected.log_probs, batch, cuts, groups.rank())) <
            1e-11);
      CHECK(max_difference(engines.ranks.optimizer().main_grads(), engines.one.optimizer().main_grads()) <
            1e-11);
      CHECK(
          same_bits_everywhere({static_cast<double>(result.num_micro_batches), result.loss()}, groups.world));
      CHECK(result.num_micro_batches >= 1);
    }
  }
  CHECK(empty_shares > 0);
}

TEST_CASE("outputs of a rank without sequences are there and empty") {
  Groups groups;
  EngineConfig config;
  config.calculate_entropy = config.calculate_sum_pi_squared = true;
  Both<optimizer::Fp32> engines(groups, "qwen3", config);
  std::mt19937_64 random(42);
  const auto batch = test::random_batch(random, {4, 5, 6}, 331);
  for (const bool fused : {true, false}) {
    auto mine = share(batch, uneven_cuts(3, groups.size()), groups.rank());
    mine.options.use_fused_kernels = fused;
    const auto result = engines.ranks.infer_batch(mine, SftLoss{});
    CHECK(result.log_probs.numel() == mine.num_tokens());
    CHECK(result.entropy.numel() == mine.num_tokens());
    CHECK(result.sum_pi_squared.numel() == mine.num_tokens());
  }
}

TEST_CASE("A2, A4: ranks with unlike counts, and a rank with nothing supervised, share one division") {
  Groups groups;
  Both<optimizer::Fp64> engines(groups, "qwen3");
  const auto grad_of_one = test::gradients_of(engines.one, test::toy_batch({1}), test::ToyLoss{});
  const double log_prob = engines.one.infer_batch(test::toy_batch({1})).log_probs[0].item<double>();
  const auto check = [&](const Batch& mine, double mean) {
    engines.ranks.optimizer_zero_grad();
    const auto result =
        engines.ranks.forward_backward_batch(test::in_micro_batches_of(mine, 5), test::ToyLoss{});
    CHECK(result.loss() == doctest::Approx(mean * log_prob).epsilon(1e-13));
    CHECK(max_difference(engines.ranks.optimizer().main_grads(), grad_of_one.mul(mean)) < 1e-12);
  };
  // rank 0 {1, 2, 3} and {10}; the last rank {.5, .5, .5, .5, 2} and {7, 8}; a rank between them has nothing
  auto mine = groups.rank() == 0 ? test::toy_batch({1, 2, 3, 10})
              : groups.last()    ? test::toy_batch({0.5, 0.5, 0.5, 0.5, 2, 7, 8})
                                 : test::toy_batch({});
  check(mine, 35.0 / 11.0);
  mine = groups.last() ? test::toy_batch({2, 4}) : test::toy_batch({9, 9, 9}, {0, 0, 0});
  check(mine, 3.0);
}

TEST_CASE("metrics: mean, sum, min and max over ranks and micro-batches, the same list on all") {
  Groups groups;
  Both<optimizer::Fp64> engines(groups, "qwen3");
  const auto batch = test::toy_batch({4, -2, 7, 1, 3, -9, 2});
  const auto closure = [](const LossInput& input) -> LossTerms {
    const auto& a = input.batch.token_fields.at("a");
    const auto n = static_cast<double>(a.numel());
    return {{"largest", a.max(), 0, false, MetricAggregation::max},
            {"total", a.sum(), n, false, MetricAggregation::sum},
            {"share", a.mul(a).sum(), 1000.0 * n, false},
            {"loss", input.log_probs.sum(), n},
            {"least", a.min(), 1, false, MetricAggregation::min},
            {"least positive", a.abs().min(), 1, false, MetricAggregation::min},
            {"largest negative", a.abs().neg().max(), 1, false, MetricAggregation::max}};
  };
  // rank 0 is without tokens: neither its list nor its smallest and largest values may show
  const auto mine = share(batch, uneven_cuts(7, groups.size()), groups.rank());
  const auto result = engines.ranks.forward_backward_batch(test::in_micro_batches_of(mine, 2), closure);
  std::vector<std::string> names;
  std::vector<double> values;
  for (const auto& metric : result.metrics) {
    names.push_back(metric.name);
    values.push_back(metric.value());
  }
  CHECK(names == std::vector<std::string>{"largest", "total", "share", "loss", "least", "least positive",
                                          "largest negative"});
  CHECK(result.metric("largest") == 7.0);
  CHECK(result.metric("least") == -9.0);
  CHECK(result.metric("total") == 6.0);
  CHECK(result.metric("share") == doctest::Approx((16 + 4 + 49 + 1 + 9 + 81 + 4) / 7000.0).epsilon(1e-15));
  CHECK(result.metric("least positive") == 1.0);
  CHECK(result.metric("largest negative") == -1.0);
  CHECK(result.loss() == result.metric("loss"));
  CHECK(same_bits_everywhere(values, groups.world));
  // the loss is the fourth of them: its count divides the gradient, no other's
  const auto expected = test::gradients_of(engines.one, batch, closure);
  CHECK(max_difference(engines.ranks.optimizer().main_grads(), expected) < 1e-12);
}

TEST_CASE("ranks that report unlike terms are told so, all of them") {
  Groups groups;
  Both<optimizer::Fp32> engines(groups, "qwen3");
  const auto batch = test::toy_batch({1, 2, 3});
  const auto refused = [&](const std::function<void(LossTerms&)>& change) {
    const auto message = test::error_of([&] {
      engines.ranks.forward_backward_batch(
          batch,
          [&](const LossInput& input) {
            auto terms = test::ToyLoss{}(input);
            terms.push_back({"extra", input.log_probs.sum(), 1.0, false});
            if (groups.last()) change(terms);
            return terms;
          },
          true);
    });
    CHECK(test::contains(message, "loss closure: data-parallel ranks report unlike terms"));
  };
  refused([](LossTerms& terms) { terms[1].name = "other"; });
  refused([](LossTerms& terms) { terms.pop_back(); });
  refused([](LossTerms& terms) { terms.push_back({"third", terms[0].sum, 1.0, false}); });
  refused([](LossTerms& terms) { std::swap(terms[0], terms[1]); });
  refused([](LossTerms& terms) { terms[1].aggregation = MetricAggregation::max; });
  refused([](LossTerms& terms) { terms[1].is_loss = true; });
  // and go on together
  CHECK(std::isfinite(engines.ranks.forward_backward_batch(batch, test::ToyLoss{}, true).loss()));
}

TEST_CASE("every aggregation of policy losses: value and gradients are one rank's") {
  Groups groups;
  EngineConfig config;
  config.calculate_entropy = true;
  Both<optimizer::Fp64> engines(groups, "qwen3", config);
  std::mt19937_64 random(43);
  auto batch = test::random_batch(random, {7, 4, 9, 5, 6, 3, 8}, 331);
  batch.loss_mask.fill_(1.0);
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  for (std::int64_t s = 0; s < 7; ++s) batch.loss_mask.narrow(0, borders[s], s == 3 ? 5 : 2).zero_();
  const auto log_probs = engines.one.infer_batch(batch).log_probs;
  const auto noise = test::waves(batch.num_tokens());
  batch.token_fields.set("old_log_probs", log_probs.add(noise.mul(0.3)));
  batch.token_fields.set("ref_log_prob", log_probs.sub(noise.mul(0.2)));
  batch.token_fields.set("advantages", noise.mul(3.0).cos());
  for (const auto mode : {rl::PolicyLossMode::vanilla, rl::PolicyLossMode::gspo})
    for (const char* name : {"token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
                             "seq-mean-token-sum-norm"}) {
      CAPTURE(name);
      rl::PolicyLossConfig loss;
      loss.mode = mode;
      loss.entropy_coeff = 0.02;
      loss.kl_loss_coef = 0.1;
      loss.aggregation.mode = rl::loss_agg_mode(name);
      loss.aggregation.loss_scale_factor = 8;
      engines.one.optimizer_zero_grad();
      const auto expected = engines.one.forward_backward_batch(batch, rl::PolicyLoss{loss});
      CHECK(engines.one.optimizer().main_grads().abs().max().item<double>() > 1e-3);
      for (const std::int64_t size : {1, 3}) {
        const auto mine = share(batch, uneven_cuts(7, groups.size()), groups.rank());
        engines.ranks.optimizer_zero_grad();
        const auto result =
            engines.ranks.forward_backward_batch(test::in_micro_batches_of(mine, size), rl::PolicyLoss{loss});
        REQUIRE(result.metrics.size() == expected.metrics.size());
        for (std::size_t m = 0; m < result.metrics.size(); ++m) {
          CAPTURE(result.metrics[m].name);
          CHECK(result.metrics[m].value() == doctest::Approx(expected.metrics[m].value()).epsilon(1e-11));
        }
        CHECK(max_difference(engines.ranks.optimizer().main_grads(), engines.one.optimizer().main_grads()) <
              1e-11 * (1 + engines.one.optimizer().main_grads().abs().max().item<double>()));
      }
    }
}

TEST_CASE("critics: values, gradients and fresh heads are one rank's") {
  Groups groups;
  Both<optimizer::Fp64, Critic> engines(groups, "qwen3_value");
  const test::Fixture fixture("qwen3_value");
  auto batch = fixture.batch("train.", 0, 4);
  batch.token_fields.set("returns", fixture.expected.tensor("train.returns")[0].reshape({-1}).clone());
  batch.token_fields.set("values", fixture.expected.tensor("train.old_values")[0].reshape({-1}).clone());
  const auto cuts = uneven_cuts(4, groups.size());
  const rl::ValueLoss loss{{0.2, {}}};
  const auto expected = engines.one.forward_backward_batch(batch, loss);
  const auto result = engines.ranks.forward_backward_batch(share(batch, cuts, groups.rank()), loss);
  CHECK(std::abs(result.loss() - expected.loss()) < 1e-12);
  CHECK(max_difference(result.values, own_part(expected.values, batch, cuts, groups.rank())) < 1e-12);
  CHECK(max_difference(engines.ranks.optimizer().main_grads(), engines.one.optimizer().main_grads()) < 1e-12);
  CHECK(engines.ranks.optimizer_step().grad_norm == doctest::Approx(engines.one.optimizer_step().grad_norm));
  CHECK(max_difference(engines.ranks.param_buffer().values, engines.one.param_buffer().values) < 1e-11);
  CHECK(same_bits_everywhere(numbers(engines.ranks.param_buffer().values), groups.world));

  // made of a language model: drawn on each rank, the same on all
  Both<optimizer::Fp32, Critic> fresh(groups, "qwen3");
  const auto head = fresh.ranks.module().head().weight.value;
  CHECK(head.abs().max().item<float>() > 0);
  CHECK(same_bits_everywhere(numbers(head), groups.world));
  CHECK(head.equal(fresh.one.module().head().weight.value));
}

TEST_CASE("train_mini_batch: weights after it are one rank's, groups or none") {
  Groups groups;
  std::mt19937_64 random(44);
  auto batch = test::random_batch(random, {5, 3, 4, 6, 2, 7, 5, 4}, 331);
  batch.loss_mask.fill_(1.0);
  for (const bool grouped : {false, true}) {
    CAPTURE(grouped);
    Both<optimizer::Fp64> engines(groups, "qwen3");
    Lengths cuts;
    for (int rank = 0; rank <= groups.size(); ++rank) cuts.push_back(8 * rank / groups.size() / 2 * 2);
    auto whole = test::in_micro_batches_of(batch, 2);
    if (grouped) whole.groups = test::longs({9, 9, 4, 4, 2, 2, 7, 7});
    const MiniBatchConfig mini{.mini_batch_size = 3, .epochs = 2, .seed = 17};
    const auto expected = engines.one.train_mini_batch(whole, SftLoss{}, mini);
    const auto results = engines.ranks.train_mini_batch(share(whole, cuts, groups.rank()), SftLoss{}, mini);
    REQUIRE(results.size() == expected.size());
    CHECK(results.size() == (grouped ? 8 : 6));
    for (std::size_t m = 0; m < results.size(); ++m) {
      CHECK(std::abs(results[m].loss() - expected[m].loss()) < 1e-11);
      CHECK(results[m].tokens == expected[m].tokens);
      CHECK(results[m].step.stepped);
    }
    CHECK(max_difference(engines.ranks.param_buffer().values, engines.one.param_buffer().values) < 1e-11);
    CHECK(engines.ranks.lr_scheduler().num_steps() == 1);
    CHECK(same_bits_everywhere(numbers(engines.ranks.param_buffer().values), groups.world));
  }
}

TEST_CASE("a NaN in one rank's closure skips the step on all, and all go on") {
  Groups groups;
  Both<optimizer::Fp32> engines(groups, "qwen3");
  std::mt19937_64 random(45);
  const auto batch = test::random_batch(random, {5, 3, 4, 6}, 331);
  const auto mine = share(batch, {0, 1, groups.size() == 2 ? 4 : 2, 4}, groups.rank());
  const auto before = engines.ranks.param_buffer().values.clone();
  const auto result = engines.ranks.train_batch(mine, [&](const LossInput& input) -> LossTerms {
    const double factor = groups.last() ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    return {{"loss", input.log_probs.sum().mul(factor), 3.0}};
  });
  CHECK(result.step.found_inf);
  CHECK_FALSE(result.step.stepped);
  CHECK(std::isnan(result.loss()));
  CHECK(engines.ranks.param_buffer().values.equal(before));
  CHECK(engines.ranks.optimizer().inner().updates == 0);
  const auto next = engines.ranks.train_batch(mine, SftLoss{});
  CHECK(next.step.stepped);
  CHECK(same_bits_everywhere({number_of(next.step.stepped), next.loss(), next.step.grad_norm}, groups.world));
  CHECK(same_bits_everywhere(numbers(engines.ranks.param_buffer().values), groups.world));
}

TEST_CASE("fp16: one rank's overflow halves the scale of all") {
  Groups groups;
  auto optimizer = test::adam();
  optimizer.initial_loss_scale = 65536;
  optimizer.hysteresis = 1;
  Both<optimizer::Fp16WithLossScaler> engines(groups, "qwen3", {}, optimizer);
  std::mt19937_64 random(46);
  const auto batch = test::random_batch(random, {5, 3, 4, 6}, 331);
  const auto mine = share(batch, {0, 1, groups.size() == 2 ? 4 : 2, 4}, groups.rank());
  const auto before = engines.ranks.param_buffer().main_params.clone();
  const auto result = engines.ranks.train_batch(mine, [&](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.sum().mul(groups.last() ? 1e30 : 1.0), 3.0}};
  });
  CHECK(result.step.found_inf);
  CHECK(engines.ranks.optimizer().loss_scale() == 32768);
  CHECK(engines.ranks.param_buffer().main_params.equal(before));
  CHECK(engines.ranks.train_batch(mine, SftLoss{}).step.stepped);
  CHECK(same_bits_everywhere(numbers(engines.ranks.param_buffer().main_params), groups.world));
}

TEST_CASE("A4: nothing supervised on any rank: zero gradients, no step, no NaN") {
  Groups groups;
  auto optimizer = test::adam();
  optimizer.weight_decay = 0;
  Both<optimizer::Fp32> engines(groups, "qwen3", {}, optimizer);
  const auto before = engines.ranks.param_buffer().values.clone();
  for (const bool empty : {false, true}) {
    const auto mine = empty ? test::toy_batch({}) : test::toy_batch({1, 2}, {0, 0});
    const auto result = engines.ranks.train_batch(mine, SftLoss{});
    CHECK(result.loss() == 0.0);
    CHECK_FALSE(result.step.stepped);
    CHECK_FALSE(result.step.found_inf);
    CHECK(engines.ranks.optimizer().main_grads().abs().max().item<float>() == 0.0f);
    CHECK(engines.ranks.param_buffer().values.equal(before));
    CHECK(engines.ranks.optimizer().inner().exp_avg_sq.abs().max().item<float>() == 0.0f);
    CHECK(engines.ranks.optimizer().inner().updates == 0);
  }
}

TEST_CASE("replicas that would start or go on unlike do not") {
  Groups groups;
  const auto folder = test::Fixture("qwen3").folder;
  const auto refusal = [&](ModelConfig model, optimizer::OptimizerConfig optimizer) {
    LanguageModelEngine<parallel::Mpi, optimizer::Fp32> engine(
        std::move(model), {}, optimizer, test::constant_schedule(1e-3, 0.1), groups.context());
    return test::error_of([&] { engine.initialize(); });
  };
  const std::string sentence = "ranks must start from the same weights and settings, and do not:";
  const auto random = refusal({"", folder + "/config.json", groups.last() ? 2u : 1u}, test::adam());
  CHECK(random.find(sentence) == 0);
  CHECK(random.find("weights") != random.npos);
  auto optimizer = test::adam();
  if (groups.last()) optimizer.lr = 0.5;
  const auto settings = refusal({folder, "", 1}, optimizer);
  CHECK(settings.find(sentence) == 0);
  CHECK(settings.find(": lr 0.5") != settings.npos);
  CHECK(settings.find("min_lr") == settings.npos);  // all ranks have it
  optimizer = test::adam();
  if (groups.last()) optimizer.grad_norm_type = 1;
  CHECK(refusal({folder, "", 1}, optimizer).find(sentence) == 0);

  Both<optimizer::Fp32> engines(groups, "qwen3");
  MiniBatchConfig config;
  config.mini_batch_size = 2;
  config.seed = groups.last() ? 1 : 0;
  const auto batch = test::toy_batch({1, 2, 3});
  CHECK(test::error_of([&] { engines.ranks.train_mini_batch(batch, SftLoss{}, config); }).find(sentence) ==
        0);
}
