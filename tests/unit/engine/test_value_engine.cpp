// The critic: recorded numbers of a value model, and a critic made of a language model.
#include <cmath>
#include <cstring>

#include "policies/rl/losses.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using test::Fixture;
using test::max_difference;
using test::TemporaryFolder;

namespace {

const rl::ValueLoss plain{{std::nullopt, {}}};

/// Rows of the fixture's batch with what value losses ask for.
Batch value_batch(const Fixture& fixture, const std::string& prefix = "", std::int64_t first = 0,
                  std::int64_t last = -1) {
  auto batch = fixture.batch(prefix, first, last);
  const auto length = batch.num_tokens() / batch.num_sequences();
  for (const auto* name : {"returns", "old_values"})
    batch.token_fields.set(std::string(name) == "returns" ? "returns" : "values",
                           fixture.expected.tensor(prefix + name)
                               .reshape({-1, length})
                               .narrow(0, first, batch.num_sequences())
                               .reshape({-1})
                               .clone());
  return batch;
}

template <class P>
void check_fixture() {
  const Fixture fixture("qwen3_value");
  const auto& expected = fixture.expected;
  for (const std::int64_t micro_batch_size : {1, 2}) {
    CAPTURE(micro_batch_size);
    EngineConfig config;
    config.micro_batch_size = micro_batch_size;
    auto engine = test::value_model<P>(fixture.folder, config);
    engine.initialize();
    const auto batch = value_batch(fixture);
    const auto result = engine.forward_backward_batch(batch, plain);
    CHECK(max_difference(result.values, expected.tensor("values")) < 5e-5);
    CHECK(std::abs(result.loss() - expected.tensor("mean_loss").template item<float>()) < 1e-5);
    CHECK(result.metrics.at(0).count ==
          static_cast<double>(expected.tensor("num_tokens").template item<std::int64_t>()));
    int seen = 0;
    test::for_each_hf_tensor(engine, true, [&](const std::string& name, const Tensor& grad) {
      CAPTURE(name);
      const auto recorded = expected.tensor("grad." + name);
      CHECK(max_difference(grad, recorded) < test::gradient_bound(recorded));
      seen += name == "score.weight" || name == "score.bias";
    });
    CHECK(seen == 2);
    CHECK(engine.optimizer().grad_norm() ==
          doctest::Approx(expected.tensor("grad_norm").template item<float>()).epsilon(1e-4));

    engine.optimizer_zero_grad();
    const auto clipped = engine.forward_backward_batch(batch, rl::ValueLoss{{0.2, {}}});
    CHECK(std::abs(clipped.loss() - expected.tensor("value_loss_clipped").template item<float>()) < 1e-5);
    CHECK(engine.optimizer().grad_norm() ==
          doctest::Approx(expected.tensor("value_loss_clipped_grad_norm").template item<float>())
              .epsilon(1e-4));

    for (std::int64_t step = 0; step < 3; ++step) {
      const auto trained = engine.train_batch(value_batch(fixture, "train.", 4 * step, 4 * step + 4), plain);
      CHECK(trained.step.stepped);
      CHECK(std::abs(trained.loss() - expected.tensor("train.loss")[step].template item<float>()) < 3e-5);
      CHECK(trained.step.grad_norm ==
            doctest::Approx(expected.tensor("train.grad_norm")[step].template item<float>()).epsilon(1e-4));
    }
    const auto step3 = test::compare_step3(engine, expected);
    CHECK(step3.within >= 0.99);
    CHECK(step3.largest < 1e-3);
    CHECK(step3.worst_median < 5e-7);
    CHECK(std::abs(engine.infer_batch(batch, plain).loss() -
                   expected.tensor("train.main_loss_after").template item<float>()) < 1e-4);
  }
}

/// A language model of hidden size 2 and 4 tokens, as a folder.
void write_language_model(const std::filesystem::path& folder, bool tied) {
  TemporaryFolder config;
  test::write_file(config / "config.json",
                   concat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2,
                       "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 1,
                       "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 4, "max_position_embeddings": 16,
                       "rms_norm_eps": 1e-12, "hidden_act": "silu", "initializer_range": 0.5,
                       "torch_dtype": "float32", "tie_word_embeddings": )",
                          tied ? "true" : "false", "}"));
  LanguageModelEngine<parallel::Self, optimizer::Fp32> engine(
      {"", config.path().string(), 3}, {}, {}, test::constant_schedule(0, 0), test::self_context());
  engine.initialize();
  engine.save_hf_pretrained(folder.string());
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const auto one = a.contiguous(), other = b.contiguous();
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

}  // namespace

TEST_CASE("fp32 critic: values, losses, gradients, three steps within the bounds") {
  check_fixture<optimizer::Fp32>();
}

TEST_CASE("Fp64 critic: the same numbers") { check_fixture<optimizer::Fp64>(); }

TEST_CASE("packed and padded critics' batches give the recorded values") {
  const Fixture fixture("qwen3_value");
  const auto& expected = fixture.expected;
  auto engine = test::value_model<optimizer::Fp32>(fixture.folder);
  engine.initialize();
  auto packed = fixture.packed();
  packed.token_fields.set("returns", expected.tensor("packed.returns").reshape({-1}).clone());
  for (const std::int64_t cap : {0, 21, 100}) {
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(test::under_cap(packed, cap), plain);
    CHECK(max_difference(result.values, expected.tensor("packed.values")) < 5e-5);
    CHECK(std::abs(result.loss() - expected.tensor("packed.mean_loss").item<float>()) < 1e-5);
    CHECK(engine.optimizer().grad_norm() ==
          doctest::Approx(expected.tensor("packed.grad_norm").item<float>()).epsilon(1e-4));
  }
  const auto mask = expected.tensor("padded.attention_mask");
  PaddedBatch right;
  right.input_ids = expected.tensor("padded.input_ids");
  right.attention_mask = mask;
  const auto values = engine.infer_batch(right).values;
  CHECK(values.sizes() == mask.sizes());
  CHECK(max_difference(values, expected.tensor("padded.values").mul(mask)) < 5e-5);
  CHECK(values.mul(mask.eq(0)).abs().max().item<float>() == 0.0f);

  auto left = right;
  const auto length = mask.size(1);
  left.input_ids = right.input_ids.clone();
  left.attention_mask = mask.clone();
  auto expected_left = expected.tensor("padded.values").mul(mask);
  for (std::int64_t row = 0; row < mask.size(0); ++row) {
    const auto shift = length - mask[row].sum().item<std::int64_t>();
    left.input_ids[row].copy_(right.input_ids[row].roll(shift));
    left.attention_mask[row].copy_(mask[row].roll(shift));
    expected_left[row].copy_(expected_left[row].clone().roll(shift));
  }
  CHECK(max_difference(engine.infer_batch(left).values, expected_left) < 5e-5);
}

TEST_CASE(
    "a critic made of a language model: head [1, hidden], fresh, tied to nothing; all else is the file's") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    TemporaryFolder temporary;
    const auto folder = (temporary / "lm").string();
    write_language_model(folder, tied);
    auto critic = test::value_model<optimizer::Fp32>(folder);
    critic.initialize();
    CHECK_FALSE(critic.config().share_embeddings_and_output_weights);
    auto& head = critic.module().head();
    CHECK(head.weight.value.sizes() == at::IntArrayRef({1, 2}));
    CHECK_FALSE(head.bias);
    CHECK(head.weight.value.abs().max().item<float>() > 0);
    const checkpoint::SafetensorsFile file(folder + "/model.safetensors");
    for (const auto* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      if (tied && std::string(name) == "lm_head.weight") continue;
      const auto rows = file.tensor(name);
      CHECK(rows.size(0) == 4);
      for (std::int64_t row = 0; row < 4; ++row) CHECK_FALSE(same_bits(rows[row], head.weight.value[0]));
    }
    int compared = 0;
    test::for_each_hf_tensor(critic, false, [&](const std::string& name, const Tensor& value) {
      if (name == "score.weight") return;
      CAPTURE(name);
      CHECK(same_bits(value, file.tensor(name)));
      ++compared;
    });
    CHECK(compared == 11);  // embedding, nine of the layer, final norm

    // another seed makes another head, the same seed the same one
    const auto head_of = [&](std::uint64_t seed) {
      ValueModelEngine<parallel::Self, optimizer::Fp32> engine(
          {folder, "", seed}, {}, {}, test::constant_schedule(0, 0), test::self_context());
      engine.initialize();
      return engine.module().head().weight.value.clone();
    };
    CHECK(same_bits(head_of(1), head.weight.value));
    CHECK_FALSE(same_bits(head_of(2), head.weight.value));
  }
}

TEST_CASE("the value of final hidden [2, 1] under the head [.5, -.25] is .75, and its gradient by hand") {
  TemporaryFolder temporary;
  const auto folder = (temporary / "lm").string();
  write_language_model(folder, true);
  auto critic = test::value_model<optimizer::Fp64>(folder);
  critic.initialize();
  // Layers that add nothing: the final norm sees [3, 3], whose root mean square is 3.
  auto& model = critic.module();
  model.word_embeddings.value.fill_(3.0);
  for (auto& layer : model.layers) {
    layer.self_attention.linear_proj_weight.value.zero_();
    layer.mlp.linear_fc2_weight.value.zero_();
  }
  model.final_layernorm.value.copy_(test::doubles({2, 1}));
  model.head().weight.value.copy_(test::doubles({0.5, -0.25}).view({1, 2}));
  Batch batch;
  batch.input_ids = test::longs({0, 3, 1, 2, 2});
  batch.cu_seqlens = test::borders({2, 3});
  batch.token_fields.set("c", test::doubles({1, -2, 3, 0.5, 4}));
  const auto result = critic.forward_backward_batch(batch, [](const ValueLossInput& input) -> LossTerms {
    return {{"loss", input.values.mul(input.batch.token_fields.at("c")).sum(), 2.5}};
  });
  CHECK(max_difference(result.values, test::doubles({0.75, 0.75, 0.75, 0.75, 0.75})) < 1e-12);
  // sum of c = 6.5 over both micro-batches, whose counts are 5 together
  CHECK(std::abs(result.loss() - 6.5 * 0.75 / 5) < 1e-12);
  CHECK(max_difference(model.head().weight.main_grad, test::doubles({1.3 * 2, 1.3 * 1})) < 1e-12);
  CHECK(max_difference(model.final_layernorm.main_grad, test::doubles({1.3 * 0.5, 1.3 * -0.25})) < 1e-12);
}

TEST_CASE("values are hidden . weight + bias, with a bias and without") {
  const Fixture fixture("qwen3_value");
  auto critic = test::value_model<optimizer::Fp64>(fixture.folder);
  critic.initialize();
  const auto batch = value_batch(fixture);
  REQUIRE(critic.module().head().bias);
  const auto with = critic.infer_batch(batch).values;
  const double bias = critic.module().head().bias->value.item<double>();
  CHECK(std::abs(bias) > 1e-3);
  critic.module().head().bias->value.zero_();
  const auto without = critic.infer_batch(batch).values;
  CHECK(max_difference(with.sub(without), zeros({batch.num_tokens()}, at::kDouble).fill_(bias)) < 1e-13);
  // and the bias's gradient is the mean of what each value gets
  const auto c = test::waves(batch.num_tokens());
  auto fed = batch;
  fed.token_fields.set("c", c);
  test::gradients_of(critic, fed, [](const ValueLossInput& input) -> LossTerms {
    return {{"loss", input.values.mul(input.batch.token_fields.at("c")).sum(), 1.0}};
  });
  CHECK(std::abs(critic.module().head().bias->main_grad.item<double>() - c.sum().item<double>() / 2) < 1e-12);
}

TEST_CASE("save and load: the head comes back bit for bit, from checkpoints and from folders") {
  TemporaryFolder temporary;
  const auto folder = (temporary / "lm").string();
  write_language_model(folder, true);
  const Fixture fixture("qwen3_value");
  for (const bool with_bias : {true, false}) {
    CAPTURE(with_bias);
    const auto source = with_bias ? fixture.folder : folder;
    const auto saved = (temporary / (with_bias ? "a" : "b")).string(), exported = saved + "-hf";
    auto critic = test::value_model<optimizer::Fp32>(source);
    critic.initialize();
    Batch batch;
    batch.input_ids = test::longs({0, 3, 1, 2, 2});
    batch.cu_seqlens = test::borders({2, 3});
    batch.token_fields.set("returns", test::doubles({1, 2, 3, 4, 5}));
    CHECK(critic.train_batch(batch, plain).step.stepped);
    critic.save_checkpoint(saved, {1, 2});
    critic.save_hf_pretrained(exported);
    const auto values = critic.infer_batch(batch).values;

    auto resumed = test::value_model<optimizer::Fp32>(source);
    resumed.initialize();
    CHECK_FALSE(same_bits(resumed.module().head().weight.value, critic.module().head().weight.value));
    const auto position = resumed.load_checkpoint(saved);
    CHECK(position.iteration == 1);
    CHECK(position.consumed_samples == 2);
    auto opened = test::value_model<optimizer::Fp32>(exported);
    opened.initialize();
    for (auto* other : {&resumed, &opened}) {
      CHECK(same_bits(other->param_buffer().values, critic.param_buffer().values));
      CHECK(same_bits(other->module().head().weight.value, critic.module().head().weight.value));
      CHECK(other->module().head().bias.has_value() == with_bias);
      CHECK(same_bits(other->infer_batch(batch).values, values));
    }
    CHECK(resumed.train_batch(batch, plain).step.stepped);
    CHECK(critic.train_batch(batch, plain).step.stepped);
    CHECK(same_bits(resumed.param_buffer().values, critic.param_buffer().values));
    CHECK_FALSE(same_bits(opened.param_buffer().values, critic.param_buffer().values));

    auto language_model = test::language_model<optimizer::Fp32>(exported);
    CHECK(test::contains(test::error_of([&] { language_model.initialize(); }),
                         "is a value model, no language model"));
  }
  auto of_fixture = test::language_model<optimizer::Fp32>(fixture.folder);
  CHECK_THROWS_WITH_AS(of_fixture.initialize(), doctest::Contains("is a value model, no language model"),
                       UserError);
}

TEST_CASE("a critic's batch without mask and labels counts every position, the last of a sequence too") {
  const Fixture fixture("qwen3_value");
  auto engine = test::value_model<optimizer::Fp64>(fixture.folder, {});
  engine.initialize();
  auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{5, 6, 7}, {8, 9}});
  batch.token_fields.set("returns", test::doubles({0, 1, 2, 3, 4}));
  const auto result = engine.forward_backward_batch(batch, plain);
  CHECK(result.metrics.at(0).count == 5);
  double expected = 0;
  for (int t = 0; t < 5; ++t) expected += 0.5 * std::pow(test::numbers(result.values)[t] - t, 2) / 5;
  CHECK(result.loss() == doctest::Approx(expected).epsilon(1e-13));
}
