// How losses are summed, divided and skipped.
#include "tests/support/fixture.hpp"

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/engine/megatron_engine.hpp"

using namespace mgfl;
using test::Fixture;
using test::max_difference;

namespace {

using TestEngine = LanguageModelEngine<parallel::Self, optimizer::Fp32>;
parallel::Self world, alone;

TestEngine make_engine(const Fixture& fixture, double weight_decay = 0.1) {
  optimizer::OptimizerConfig optimizer;
  optimizer.weight_decay = weight_decay;
  return TestEngine({fixture.folder, "", 1}, {}, optimizer, test::constant_schedule(1e-3, weight_decay),
                    parallel::data_parallel_context(world, alone));
}

}  // namespace

TEST_CASE("micro-batches with unlike counts share one division") {
  // Toy: the loss of a token is w * a, here a closure that ignores the model; sequences of 3 tokens, the
  // second mostly masked.
  const Fixture fixture("llama");
  auto engine = make_engine(fixture);
  engine.initialize();
  auto batch = sequences_of(fixture.batch(), 0, 1);
  batch = {batch.input_ids.narrow(0, 0, 6).contiguous(),
           batch.labels.narrow(0, 0, 6).contiguous(),
           zeros({6}, at::kFloat),
           zeros({3}, at::kInt),
           {},
           {}};
  const float mask[] = {1, 1, 1, 1, 0, 0}, a[] = {1, 2, 3, 10, 7, 7};
  for (int i = 0; i < 6; ++i) batch.loss_mask.data_ptr<float>()[i] = mask[i];
  batch.cu_seqlens.data_ptr<std::int32_t>()[1] = 3;
  batch.cu_seqlens.data_ptr<std::int32_t>()[2] = 6;
  std::int64_t seen = 0;
  const auto toy = [&](const LossInput& input) -> LossTerms {
    auto value = zeros({3}, at::kFloat);
    for (int i = 0; i < 3; ++i) value.data_ptr<float>()[i] = a[seen + i];
    seen += 3;
    return {{"loss", value.mul(input.batch.loss_mask).sum(), ordered_sum(input.batch.loss_mask)}};
  };
  CHECK(engine.forward_backward_batch(batch, toy, true).loss() == 4.0);
}

TEST_CASE("a micro-batch without supervised tokens adds nothing") {
  const Fixture fixture("qwen2");
  auto with = make_engine(fixture), without = make_engine(fixture);
  with.initialize();
  without.initialize();
  auto batch = fixture.batch();
  batch.loss_mask.narrow(0, 0, batch.num_tokens() / 2).zero_();
  const auto a = with.forward_backward_batch(batch, SftLoss{});
  const auto b = without.forward_backward_batch(sequences_of(batch, 1, 2), SftLoss{});
  CHECK(a.loss() == doctest::Approx(b.loss()).epsilon(1e-7));
  CHECK(max_difference(with.optimizer().main_grads(), without.optimizer().main_grads()) < 1e-6);
}

TEST_CASE("a batch without any supervised token changes nothing") {
  const Fixture fixture("qwen2");
  auto engine = make_engine(fixture);
  engine.initialize();
  const auto before = engine.param_buffer().values.clone();
  auto batch = fixture.batch();
  batch.loss_mask.zero_();
  const auto result = engine.forward_backward_batch(batch, SftLoss{});
  CHECK(result.loss() == 0.0);
  CHECK(max_difference(engine.optimizer().main_grads(), engine.optimizer().main_grads().mul(0.0)) == 0.0);
  CHECK_FALSE(engine.optimizer_step().stepped);
  CHECK(max_difference(engine.param_buffer().values, before) == 0.0);
  CHECK(max_difference(engine.optimizer().inner().exp_avg_sq, before.mul(0.0)) == 0.0);
  CHECK(engine.optimizer().inner().updates == 0);
}

TEST_CASE("ignored labels count neither in the sum nor in the count") {
  const Fixture fixture("qwen3");
  auto engine = make_engine(fixture);
  engine.initialize();
  auto batch = fixture.batch();
  batch.loss_mask.fill_(1.0);
  const auto all = engine.forward_backward_batch(batch, SftLoss{}, true);
  batch.labels.narrow(0, 0, 5).fill_(ignore_index);
  const auto some = engine.forward_backward_batch(batch, SftLoss{}, true);
  CHECK(some.metrics[0].count == all.metrics[0].count - 5);
  CHECK(max_difference(some.log_probs.narrow(0, 0, 5), zeros({5}, at::kFloat)) == 0.0);
  CHECK(max_difference(some.log_probs.narrow(0, 5, 20), all.log_probs.narrow(0, 5, 20)) == 0.0);
}

TEST_CASE("zero gradients: matrices and embeddings decay, norms and biases do not") {
  const Fixture fixture("qwen2");
  auto engine = make_engine(fixture, 0.5);
  engine.initialize();
  engine.optimizer().param_groups[0].lr = engine.optimizer().param_groups[1].lr = 0.1;
  for (const auto& param : engine.param_buffer().params) param.value->fill_(1.0);
  engine.optimizer_zero_grad();
  CHECK(engine.optimizer().step().stepped);
  for (const auto& param : engine.param_buffer().params) {
    CAPTURE(param.desc->name);
    const float expected = param.desc->shape.size() > 1 ? 0.95f : 1.0f;
    CHECK(param.value->min().item<float>() == doctest::Approx(expected));
    CHECK(param.value->max().item<float>() == doctest::Approx(expected));
  }
}

TEST_CASE("a constant gradient moves every weight by exactly the learning rate") {
  const Fixture fixture("qwen2");
  auto engine = make_engine(fixture, 0.0);
  engine.initialize();
  auto& optimizer = engine.optimizer();
  for (const auto& param : engine.param_buffer().params) param.value->zero_();
  for (int update = 1; update <= 4; ++update) {
    engine.optimizer_zero_grad();
    for (const auto& param : engine.param_buffer().params) param.main_grad->fill_(0.25);
    CHECK(optimizer.step().stepped);
    CHECK(optimizer.inner().updates == update);
    CHECK(engine.module().final_layernorm.value[0].item<float>() ==
          doctest::Approx(-1e-3 * update).epsilon(1e-5));
  }
}

TEST_CASE("a non-finite gradient skips the step and changes no weight, in every precision") {
  const Fixture fixture("llama");
  auto engine = make_engine(fixture);
  engine.initialize();
  const auto before = engine.param_buffer().values.clone();
  engine.forward_backward_batch(fixture.batch(), SftLoss{});
  engine.module().final_layernorm.main_grad.fill_(std::numeric_limits<float>::infinity());
  const auto outcome = engine.optimizer_step();
  CHECK(outcome.found_inf);
  CHECK_FALSE(outcome.stepped);
  CHECK(max_difference(engine.param_buffer().values, before) == 0.0);
  CHECK(engine.optimizer().inner().updates == 0);
}

TEST_CASE("gradients of one batch are not mixed with the next one's in silence") {
  const Fixture fixture("llama");
  auto engine = make_engine(fixture);
  engine.initialize();
  engine.forward_backward_batch(fixture.batch(), SftLoss{});
  CHECK_THROWS_AS(engine.forward_backward_batch(fixture.batch(), SftLoss{}), RunError);
  engine.optimizer_zero_grad();
  CHECK_NOTHROW(engine.forward_backward_batch(fixture.batch(), SftLoss{}));
}

TEST_CASE("token ids and labels outside the vocabulary are errors that say where") {
  const Fixture fixture("llama");
  auto engine = make_engine(fixture);
  engine.initialize();
  for (const std::int64_t id : {std::int64_t{320}, std::int64_t{-1}}) {
    auto batch = fixture.batch();
    batch.input_ids.data_ptr<std::int64_t>()[7] = id;
    CHECK_THROWS_WITH_AS(engine.forward_backward_batch(batch, SftLoss{}, true),
                         doctest::Contains(concat("token id ", id, " at position 7").c_str()), UserError);
    batch = fixture.batch();
    batch.labels.data_ptr<std::int64_t>()[3] = id;
    CHECK_THROWS_WITH_AS(engine.forward_backward_batch(batch, SftLoss{}, true),
                         doctest::Contains(concat("label ", id, " at position 3").c_str()), UserError);
  }
}

TEST_CASE("main weights keep what bf16 loses") {
  const Fixture fixture("llama");
  optimizer::OptimizerConfig optimizer;
  optimizer.lr = 1e-3;
  optimizer.weight_decay = 0;
  optimizer.clip_grad = 0;
  LanguageModelEngine<parallel::Self, optimizer::Bf16WithFp32Main> engine(
      {fixture.folder, "", 1}, {}, optimizer, test::constant_schedule(1e-3, 0),
      parallel::data_parallel_context(world, alone));
  engine.initialize();
  auto& buffer = engine.param_buffer();
  buffer.main_params.fill_(1.0);
  buffer.values.fill_(1.0);
  for (int update = 0; update < 10; ++update) {
    engine.optimizer_zero_grad();
    engine.optimizer().main_grads().fill_(1.0);
    engine.optimizer().step();
  }
  CHECK(buffer.main_params[0].item<float>() == doctest::Approx(0.99).epsilon(1e-6));
  CHECK(engine.module().final_layernorm.value[0].to(at::kFloat).item<float>() == 0.98828125f);
}

namespace {

LossTerms tokens_of_the_mask(const LossInput& input) {
  return {{"tokens", input.batch.loss_mask.to(at::kDouble).sum(), 1, false, MetricAggregation::sum}};
}

}  // namespace

TEST_CASE("a batch without labels and mask predicts every token but the first of a sequence") {
  const Fixture fixture("llama");
  auto engine = make_engine(fixture);
  engine.initialize();
  const std::vector<std::vector<std::int64_t>> sequences{{3, 4, 5}, {6}, {7, 8}};
  const auto batch = batch_of(sequences);
  CHECK(batch.num_sequences() == 3);
  CHECK(batch.num_tokens() == 6);
  // A function is a loss as well as a closure.
  CHECK(engine.infer_batch(batch, tokens_of_the_mask).metric("tokens") == 3);
}
