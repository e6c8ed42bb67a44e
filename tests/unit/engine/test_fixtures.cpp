// The engine against the recorded numbers of four architectures: forward, loss, gradients, three optimizer
// steps.

#include "tests/support/fixture.hpp"

#include "mgfl/tensor/factory.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "tests/support/engines.hpp"

using namespace mgfl;
using test::compare_step3;
using test::Fixture;
using test::for_each_hf_tensor;
using test::max_difference;

namespace {

template <class P>
using SelfEngine = LanguageModelEngine<parallel::Self, P>;

parallel::Self world, alone;

optimizer::OptimizerConfig three_steps() {
  optimizer::OptimizerConfig config;
  config.lr = 1e-3;
  config.adam_beta1 = 0.9;
  config.adam_beta2 = 0.95;
  config.adam_eps = 1e-8;
  config.weight_decay = 0.1;
  config.clip_grad = 1.0;
  return config;
}

template <class P>
SelfEngine<P> make_engine(const Fixture& fixture, std::int64_t micro_batch_size,
                          optimizer::OptimizerConfig optimizer = three_steps()) {
  EngineConfig config;
  config.micro_batch_size = micro_batch_size;
  config.calculate_entropy = true;
  return SelfEngine<P>({fixture.folder, "", 1}, config, optimizer,
                       test::constant_schedule(optimizer.lr, optimizer.weight_decay),
                       parallel::data_parallel_context(world, alone));
}

constexpr const char* models[] = {"llama", "mistral", "qwen2", "qwen3"};

}  // namespace

TEST_CASE("fp32: logits, log-probs, entropy, loss, gradients and norm within the bounds") {
  for (const auto* name : models) {
    CAPTURE(name);
    const Fixture fixture(name);
    auto engine = make_engine<optimizer::Fp32>(fixture, 1);
    engine.initialize();
    const auto batch = fixture.batch();
    CHECK(max_difference(engine.logits(batch), fixture.expected.tensor("logits")) < 5e-5);
    const auto result = engine.forward_backward_batch(batch, SftLoss{});
    CHECK(max_difference(result.log_probs, fixture.expected.tensor("token_logprob")) < 5e-5);
    CHECK(max_difference(result.entropy, fixture.expected.tensor("entropy")) < 5e-5);
    CHECK(std::abs(result.loss() - fixture.expected.tensor("mean_loss").item<float>()) < 1e-5);
    CHECK(result.metrics[0].count == fixture.expected.tensor("num_tokens").item<std::int64_t>());
    for_each_hf_tensor(engine, true, [&](const std::string& hf_name, const Tensor& grad) {
      CAPTURE(hf_name);
      const auto expected = fixture.expected.tensor("grad." + hf_name);
      CHECK(max_difference(grad, expected) < test::gradient_bound(expected));
    });
    CHECK(engine.optimizer().grad_norm() ==
          doctest::Approx(fixture.expected.tensor("grad_norm").item<float>()).epsilon(1e-4));
  }
}

TEST_CASE("fp32: three steps within the bounds, at micro-batches of 1, 2 and 4 sequences") {
  for (const auto* name : models) {
    for (std::int64_t micro_batch_size : {1, 2, 4}) {
      CAPTURE(name);
      CAPTURE(micro_batch_size);
      const Fixture fixture(name);
      auto engine = make_engine<optimizer::Fp32>(fixture, micro_batch_size);
      engine.initialize();
      for (std::int64_t step = 0; step < 3; ++step) {
        engine.optimizer_zero_grad();
        const auto result =
            engine.forward_backward_batch(fixture.batch("train.", 4 * step, 4 * step + 4), SftLoss{});
        const auto outcome = engine.optimizer_step();
        CHECK(outcome.stepped);
        CHECK(std::abs(result.loss() - fixture.expected.tensor("train.loss")[step].item<float>()) < 3e-5);
        CHECK(outcome.grad_norm ==
              doctest::Approx(fixture.expected.tensor("train.grad_norm")[step].item<float>()).epsilon(1e-4));
        engine.lr_scheduler_step(4);
      }
      const auto step3 = compare_step3(engine, fixture.expected);
      CHECK(step3.within >= 0.99);
      CHECK(step3.largest < 1e-3);
      CHECK(step3.worst_median < 5e-7);
    }
  }
}

TEST_CASE("wrong optimizers break the bounds on weights after three steps") {
  const Fixture fixture("llama");
  const auto run = [&](auto&& change) {
    auto config = three_steps();
    change(config);
    auto engine = make_engine<optimizer::Fp32>(fixture, 2, config);
    engine.initialize();
    for (std::int64_t step = 0; step < 3; ++step) {
      engine.optimizer_zero_grad();
      engine.forward_backward_batch(fixture.batch("train.", 4 * step, 4 * step + 4), SftLoss{});
      engine.optimizer_step();
      engine.lr_scheduler_step(4);
    }
    const auto step3 = compare_step3(engine, fixture.expected);
    return step3.within >= 0.99 && step3.worst_median < 5e-7;
  };
  CHECK(run([](auto&) {}));
  CHECK_FALSE(run([](auto& config) { config.clip_grad = 0; }));
  CHECK_FALSE(run([](auto& config) { config.weight_decay = 0; }));
  CHECK_FALSE(run([](auto& config) { config.adam_beta2 = 0.999; }));
  CHECK_FALSE(run([](auto& config) { config.adam_eps = 1e-7; }));
  CHECK_FALSE(run([](auto& config) { config.lr = 1.001e-3; }));
}

TEST_CASE("Fp64: within 1e-10 of the recorded double-precision numbers") {
  for (const auto* name : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const Fixture fixture(name);
    const checkpoint::SafetensorsFile expected(fixture.folder + "/expected64.safetensors");
    auto engine = make_engine<optimizer::Fp64>(fixture, 1);
    engine.initialize();
    CHECK(max_difference(engine.logits(fixture.batch()), expected.tensor("logits")) < 1e-10);
    const auto result = engine.forward_backward_batch(fixture.batch(), SftLoss{});
    CHECK(max_difference(result.log_probs.neg(), expected.tensor("token_loss")) < 1e-10);
    CHECK(std::abs(result.loss() - expected.tensor("mean_loss").item<double>()) < 1e-10);
    for_each_hf_tensor(engine, true, [&](const std::string& hf_name, const Tensor& grad) {
      CAPTURE(hf_name);
      CHECK(max_difference(grad, expected.tensor("grad." + hf_name)) < 1e-10);
    });
    for (std::int64_t step = 0; step < 3; ++step) {
      engine.optimizer_zero_grad();
      const auto trained =
          engine.forward_backward_batch(fixture.batch("train.", 4 * step, 4 * step + 4), SftLoss{});
      CHECK(std::abs(trained.loss() - expected.tensor("train.loss")[step].item<double>()) < 1e-10);
      CHECK(std::abs(engine.optimizer_step().grad_norm -
                     expected.tensor("train.grad_norm")[step].item<double>()) < 1e-10);
      engine.lr_scheduler_step(4);
    }
    CHECK(compare_step3(engine, expected).largest < 1e-10);
  }
}

TEST_CASE("bf16 and fp16 stay near fp32") {
  const Fixture fixture("llama");
  const auto loss_in = [&](auto precision) {
    auto engine = make_engine<decltype(precision)>(fixture, 1);
    engine.initialize();
    return engine.forward_backward_batch(fixture.batch(), SftLoss{}, true).loss();
  };
  const double expected = fixture.expected.tensor("bf16.mean_loss").item<float>();
  CHECK(std::abs(loss_in(optimizer::Bf16WithFp32Main{}) - expected) < 0.02);
  CHECK(std::abs(loss_in(optimizer::Fp16WithLossScaler{}) - expected) < 0.02);
}

TEST_CASE("packed sequences are each sequence alone, under any cut into micro-batches") {
  for (const auto* name : models) {
    CAPTURE(name);
    const Fixture fixture(name);
    const auto packed = fixture.packed();
    for (std::int64_t cap : {0, 24, 1000}) {
      CAPTURE(cap);
      EngineConfig config;
      config.max_tokens_per_micro_batch = cap;
      const auto optimizer = three_steps();
      SelfEngine<optimizer::Fp32> engine({fixture.folder, "", 1}, config, optimizer,
                                         test::constant_schedule(optimizer.lr, optimizer.weight_decay),
                                         parallel::data_parallel_context(world, alone));
      engine.initialize();
      const auto result = engine.forward_backward_batch(packed, SftLoss{});
      CHECK(max_difference(result.log_probs.neg(), fixture.expected.tensor("packed.token_loss")) < 5e-5);
      CHECK(std::abs(result.loss() - fixture.expected.tensor("packed.mean_loss").item<float>()) < 1e-5);
      CHECK(engine.optimizer().grad_norm() ==
            doctest::Approx(fixture.expected.tensor("packed.grad_norm").item<float>()).epsilon(1e-4));
    }
  }
}

TEST_CASE("a loss closure gives the same gradients as the loss whose gradient is known beforehand") {
  const Fixture fixture("qwen3");
  const auto batch = fixture.batch();
  auto known = make_engine<optimizer::Fp64>(fixture, 1), closure = make_engine<optimizer::Fp64>(fixture, 2);
  known.initialize();
  closure.initialize();
  const auto a = known.forward_backward_batch(batch, SftLoss{});
  const auto b = closure.forward_backward_batch(batch, [](const LossInput& input) -> LossTerms {
    const auto sum = input.log_probs.mul(input.batch.loss_mask).sum().neg();
    return {{"loss", sum, ordered_sum(input.batch.loss_mask)}, {"entropy", input.entropy.sum(), 1.0, false}};
  });
  CHECK(a.loss() == doctest::Approx(b.loss()).epsilon(1e-13));
  CHECK(b.metrics.size() == 2);
  CHECK(max_difference(known.optimizer().main_grads(), closure.optimizer().main_grads()) < 1e-13);
}

TEST_CASE("entropy's gradient agrees with a finite difference") {
  const Fixture fixture("llama");
  auto engine = make_engine<optimizer::Fp64>(fixture, 2);
  engine.initialize();
  const auto batch = fixture.batch();
  const auto loss = [](const LossInput& input) -> LossTerms {
    return {{"entropy", input.entropy.mul(input.batch.loss_mask).sum(), 1.0}};
  };
  engine.forward_backward_batch(batch, loss);
  auto& weight = engine.module().final_layernorm;
  const double slope = weight.main_grad[3].item<double>();
  const auto at = [&](double shift) {
    weight.value[3].add_(shift);
    const double value = engine.forward_backward_batch(batch, loss, true).loss();
    weight.value[3].sub_(shift);
    return value;
  };
  CHECK((at(1e-5) - at(-1e-5)) / 2e-5 == doctest::Approx(slope).epsilon(1e-6));
}
