// The language-model head by its two ways, in row chunks and through whole logits: one result, one gradient.
#include <cmath>
#include <functional>
#include <random>

#include "tests/support/engines.hpp"

using namespace mgfl;
using test::Lengths;
using test::max_difference;

namespace {

EngineConfig with_everything(bool fused) {
  EngineConfig config;
  config.calculate_entropy = config.calculate_sum_pi_squared = true;
  config.use_fused_kernels = fused;
  config.micro_batch_size = 1000;
  return config;
}

/// Sequences of unlike length with a temperature each, and a weight a token in the field "weight".
Batch weighted_batch(const Lengths& lengths, std::int64_t vocab_size) {
  std::mt19937_64 random(5);
  auto batch = test::random_batch(random, lengths, vocab_size);
  std::vector<double> temperature;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    temperature.push_back(0.7 + 0.2 * static_cast<double>(s % 5));
  batch.temperature = test::doubles(temperature);
  batch.token_fields.set("weight", test::waves(batch.num_tokens()));
  return batch;
}

using Closure = std::function<LossTerms(const LossInput&)>;

/// All three outputs, each with other weights and not linearly.
LossTerms mixed(const LossInput& input) {
  const auto weight = input.batch.token_fields.at("weight").to(input.log_probs.scalar_type());
  auto sum = input.log_probs.mul(weight).sum();
  sum = sum.add(input.log_probs.exp().mul(weight.mul(weight)).sum(), 3.0);
  sum = sum.add(input.entropy.mul(weight.add(2)).sum(), 0.5);
  sum = sum.add(input.sum_pi_squared.mul(weight).exp().sum(), 2.0);
  return {{"loss", sum, static_cast<double>(input.batch.num_tokens())}};
}

template <class P>
void check_ways_agree(const Lengths& lengths, double outputs, bool exact, const Closure& loss = mixed) {
  const test::Fixture fixture("qwen3");
  auto fused = test::language_model<P>(fixture.folder, with_everything(true));
  auto whole = test::language_model<P>(fixture.folder, with_everything(false));
  fused.initialize();
  whole.initialize();
  const auto batch = weighted_batch(lengths, 331);
  const auto a = fused.forward_backward_batch(batch, loss), b = whole.forward_backward_batch(batch, loss);
  CHECK(max_difference(a.log_probs, b.log_probs) < outputs);
  CHECK(max_difference(a.entropy, b.entropy) < outputs);
  CHECK(max_difference(a.sum_pi_squared, b.sum_pi_squared) < outputs);
  CHECK(std::abs(a.loss() - b.loss()) < outputs);
  CHECK(a.log_probs.abs().max().template item<double>() > 1);
  const auto& params = fused.param_buffer().params;
  for (std::size_t i = 0; i < params.size(); ++i) {
    CAPTURE(params[i].desc->name);
    const auto& expected = *whole.param_buffer().params[i].main_grad;
    CHECK(max_difference(*params[i].main_grad, expected) < (exact ? 1e-11 : test::gradient_bound(expected)));
    CHECK(expected.abs().max().template item<double>() > 0);
  }
}

/// d loss / d element by moving the weight.
template <class Engine>
void check_slope(Engine& engine, const Batch& batch, const Closure& loss) {
  engine.optimizer_zero_grad();
  engine.forward_backward_batch(batch, loss);
  const auto& params = engine.param_buffer().params;
  for (const std::size_t which : {std::size_t{0}, std::size_t{3}, params.size() / 2, params.size() - 1}) {
    auto value = params[which].value->view({-1});
    const auto grads = params[which].main_grad->view({-1});
    const auto element = grads.abs().argmax().template item<std::int64_t>();  // not a noise-sized one
    CAPTURE(params[which].desc->name);
    const auto at = [&](double shift) {
      value[element].add_(shift);
      const double result = engine.forward_backward_batch(batch, loss, true).loss();
      value[element].sub_(shift);
      return result;
    };
    const double slope = (8 * (at(1e-4) - at(-1e-4)) - (at(2e-4) - at(-2e-4))) / 12e-4;
    CHECK(slope == doctest::Approx(grads[element].template item<double>()).epsilon(1e-6));
  }
}

/// Token weights that a closure can be written for.
struct Weighted {
  TokenWeights token_weights(const Batch& batch) const {
    return {"loss", batch.token_fields.at("weight").mul(batch.labels.ne(ignore_index)).to(at::kFloat), 5};
  }
};

}  // namespace

TEST_CASE("fp32: chunks and whole logits give one result and one gradient") {
  check_ways_agree<optimizer::Fp32>({7, 20, 3, 31}, 5e-5, false);
}

TEST_CASE("Fp64: chunks and whole logits agree to 1e-11") {
  check_ways_agree<optimizer::Fp64>({7, 20, 3, 31}, 1e-11, true);
}

TEST_CASE("more tokens than any chunk of rows: the same, forward and backward") {
  Lengths lengths(73, 29);  // 2117 tokens in one micro-batch
  lengths.push_back(1);
  check_ways_agree<optimizer::Fp64>(lengths, 1e-11, true);
  check_ways_agree<optimizer::Fp32>(lengths, 5e-5, false);
}

TEST_CASE("rows at a chunk's border are the rows of small micro-batches, in fp32 and bf16") {
  const test::Fixture fixture("qwen3");
  const Lengths lengths(73, 29);
  const auto check = [&](auto precision, double bound) {
    auto engine = test::language_model<decltype(precision)>(fixture.folder, with_everything(true));
    engine.initialize();
    const auto batch = weighted_batch(lengths, 331);
    const auto whole = engine.infer_batch(batch),
               cut = engine.infer_batch(test::in_micro_batches_of(batch, 7));
    CHECK(whole.num_micro_batches == 1);
    CHECK(max_difference(whole.log_probs, cut.log_probs) < bound);
    CHECK(max_difference(whole.entropy, cut.entropy) < bound);
    CHECK(max_difference(whole.sum_pi_squared, cut.sum_pi_squared) < bound);
    const auto one = test::gradients_of(engine, batch, mixed);
    const auto other = test::gradients_of(engine, test::in_micro_batches_of(batch, 7), mixed);
    CHECK(max_difference(one, other) <
          test::gradient_bound(one) + bound * one.abs().max().template item<double>());
    CHECK(one.abs().max().template item<double>() > 1e-3);
  };
  check(optimizer::Fp32{}, 5e-5);
  check(optimizer::Bf16WithFp32Main{}, 0.02);
}

TEST_CASE("finite differences of each output, by both ways") {
  const test::Fixture fixture("qwen3");
  const auto of = [](auto member) -> Closure {
    return [member](const LossInput& input) -> LossTerms {
      const auto weight = input.batch.token_fields.at("weight");
      return {{"loss", (input.*member).mul(weight).sum(), 7.0}};
    };
  };
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    auto engine = test::language_model<optimizer::Fp64>(fixture.folder, with_everything(fused));
    engine.initialize();
    const auto batch = weighted_batch({9, 5}, 331);
    check_slope(engine, batch, of(&LossInput::log_probs));
    check_slope(engine, batch, of(&LossInput::entropy));
    check_slope(engine, batch, of(&LossInput::sum_pi_squared));
  }
}

TEST_CASE("a closure on logits: its gradient, and that of the same loss through log_probs") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder, with_everything(false));
  engine.initialize();
  const auto batch = weighted_batch({9, 5}, 331);
  const Closure on_logits = [](const LossInput& input) -> LossTerms {
    CHECK(input.logits.sizes() == at::IntArrayRef({input.batch.num_tokens(), 331}));
    const auto weight = input.batch.token_fields.at("weight");
    const auto p = input.logits.softmax(-1);
    // a distillation-like term, and the top logit of each row
    auto sum = p.mul(p).sum(-1).mul(weight).sum();
    return {{"loss", sum.add(input.logits.pow(2).mean(-1).mul(weight).sum()), 3.0}};
  };
  check_slope(engine, batch, on_logits);

  const Closure nll_of_logits = [](const LossInput& input) -> LossTerms {
    const auto& labels = input.batch.labels;
    const auto log_p = input.logits.log_softmax(-1);
    const auto chosen = log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
    const auto weight = input.batch.token_fields.at("weight");
    return {{"loss", chosen.mul(labels.ne(ignore_index)).mul(weight).sum().neg(), 3.0}};
  };
  const Closure nll = [](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.mul(input.batch.token_fields.at("weight")).sum().neg(), 3.0}};
  };
  const auto a = test::gradients_of(engine, batch, nll_of_logits), b = test::gradients_of(engine, batch, nll);
  CHECK(max_difference(a, b) < 1e-13);
  CHECK(a.abs().max().item<double>() > 1e-3);
}

TEST_CASE("logits that a closure sees are the model's over the temperature") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder, with_everything(false));
  engine.initialize();
  const auto batch = weighted_batch({4, 6}, 331);
  const auto raw = engine.logits(batch);
  engine.forward_backward_batch(
      batch,
      [&](const LossInput& input) -> LossTerms {
        CHECK(max_difference(input.logits.narrow(0, 0, 4), raw.narrow(0, 0, 4).div(0.7)) < 1e-12);
        CHECK(max_difference(input.logits.narrow(0, 4, 6), raw.narrow(0, 4, 6).div(0.9)) < 1e-12);
        return {{"loss", input.logits.sum(), 1.0}};
      },
      true);
}

TEST_CASE("a loss of token weights: by chunks, by whole logits and as a closure, the same gradient") {
  const test::Fixture fixture("qwen3");
  const Closure closure = [](const LossInput& input) -> LossTerms {
    const auto weights = Weighted{}.token_weights(input.batch);
    return {{"loss", input.log_probs.mul(weights.weight).sum().neg(), weights.count}};
  };
  std::vector<Tensor> grads;
  std::vector<double> losses;
  auto batch = weighted_batch({9, 5, 12}, 331);
  for (const bool fused : {true, false}) {
    auto engine = test::language_model<optimizer::Fp64>(fixture.folder, with_everything(true));
    engine.initialize();
    batch.options.use_fused_kernels = fused;
    grads.push_back(test::gradients_of(engine, batch, Weighted{}));
    losses.push_back(engine.forward_backward_batch(batch, Weighted{}, true).loss());
    grads.push_back(test::gradients_of(engine, batch, closure));
    losses.push_back(engine.forward_backward_batch(batch, closure, true).loss());
  }
  for (std::size_t i = 1; i < grads.size(); ++i) {
    CHECK(max_difference(grads[i], grads[0]) < 1e-11);
    CHECK(std::abs(losses[i] - losses[0]) < 1e-11);
  }
  CHECK(grads[0].abs().max().item<double>() > 1e-3);
}

TEST_CASE("what a closure leaves out gets no gradient, and results carry no graph") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder, with_everything(true));
  engine.initialize();
  const auto batch = weighted_batch({9, 5}, 331);
  const auto zero = test::gradients_of(engine, batch, [](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.mul(0.0).sum(), 1.0}};
  });
  CHECK(zero.abs().max().item<double>() == 0.0);
  const auto plain = engine.infer_batch(batch);
  engine.optimizer_zero_grad();
  const auto result = engine.forward_backward_batch(batch, [](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.sum(), 1.0}};
  });
  CHECK(result.log_probs.equal(plain.log_probs));
  CHECK(result.entropy.equal(plain.entropy));
  CHECK_FALSE(result.log_probs.requires_grad());
}

TEST_CASE("a closure may write on its outputs: the result keeps the model's, the gradient is right") {
  const test::Fixture fixture("qwen3");
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    EngineConfig config;
    config.use_fused_kernels = fused;
    auto engine = test::language_model<optimizer::Fp64>(fixture.folder, config);
    engine.initialize();
    const auto batch = fixture.batch();
    const auto loss_of = [](const LossInput& input, Tensor values) -> LossTerms {
      return {{"loss", values.mul(input.batch.loss_mask).sum(), ordered_sum(input.batch.loss_mask)}};
    };
    const auto expected = engine.forward_backward_batch(
        batch, [&](const LossInput& input) { return loss_of(input, input.log_probs.mul(2.0)); });
    const auto grads = engine.optimizer().main_grads().clone();
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(batch, [&](const LossInput& input) {
      auto values = input.log_probs;
      return loss_of(input, values.mul_(2.0));
    });
    CHECK(test::max_difference(result.log_probs, expected.log_probs) == 0.0);
    CHECK(test::max_difference(engine.optimizer().main_grads(), grads) < 1e-15);
  }
}
