// What people do wrong with an engine, and the sentence that they get; numbers that must not go wrong.
#include <cmath>
#include <limits>

#include "policies/rl/losses.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using test::error_of;
using test::max_difference;

namespace {

template <class P = optimizer::Fp64>
auto language_model(EngineConfig config = {}, const char* fixture = "qwen3") {
  return test::language_model<P>(test::Fixture(fixture).folder, config);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

LossTerms nll(const LossInput& input) {
  return {
      {"nll", input.log_probs.mul(input.batch.loss_mask).sum().neg(), ordered_sum(input.batch.loss_mask)}};
}

}  // namespace

TEST_CASE("terms that differ between micro-batches are refused: their counts could not be one divisor") {
  auto engine = language_model();
  engine.initialize();
  const auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2, 3}, {4, 5, 6, 7}});
  int calls = 0;
  const auto message = error_of([&] {
    engine.forward_backward_batch(batch, [&](const LossInput& input) -> LossTerms {
      return {{calls++ == 0 ? "a" : "b", input.log_probs.sum().neg(), 1.0}};
    });
  });
  CHECK(message ==
        "loss closure: a micro-batch reports b after others reported a; return the same terms, with the same "
        "aggregation and is_loss, in every micro-batch, with sum 0 and count 0 where there is nothing.");
}

TEST_CASE("a count that is no number is named") {
  auto engine = language_model();
  engine.initialize();
  const auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2, 3}});
  for (const double count : {std::numeric_limits<double>::quiet_NaN(), -1.0}) {
    const auto message = error_of([&] {
      engine.infer_batch(batch, [&](const LossInput& input) -> LossTerms {
        return {{"mine", input.log_probs.sum(), count}};
      });
    });
    CHECK(contains(message, "loss closure: the count of term \"mine\" is "));
  }
}

TEST_CASE("a loss that is no number skips its step, though its gradient is finite") {
  auto engine = language_model();
  engine.initialize();
  const auto before = engine.param_buffer().values.clone();
  const auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2, 3}});
  const auto result = engine.train_batch(batch, [](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.sum().add(std::numeric_limits<double>::quiet_NaN()), 2.0}};
  });
  CHECK(std::isnan(result.loss()));
  CHECK(result.step.found_inf);
  CHECK_FALSE(result.step.stepped);
  CHECK(max_difference(engine.param_buffer().values, before) == 0.0);
  CHECK(engine.train_batch(batch, nll).step.stepped);
}

TEST_CASE("a step wants the gradients of a finished batch, once") {
  auto engine = language_model();
  engine.initialize();
  const auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2, 3}, {4, 5}});
  const auto refused = [&] {
    return contains(error_of([&] { engine.optimizer_step(); }),
                    "optimizer_step: there are no gradients of a finished batch");
  };
  CHECK(refused());
  engine.forward_backward_batch(batch, nll);
  CHECK(engine.optimizer_step().stepped);
  CHECK(refused());
  engine.optimizer_zero_grad();
  CHECK(refused());
  int calls = 0;
  CHECK_THROWS_AS(engine.forward_backward_batch(batch,
                                                [&](const LossInput& input) -> LossTerms {
                                                  if (calls++ == 1) throw std::runtime_error("mine");
                                                  return nll(input);
                                                }),
                  std::runtime_error);
  CHECK(refused());
  engine.optimizer_zero_grad();
  CHECK(engine.train_batch(batch, nll).step.stepped);
}

TEST_CASE("a closure cannot call its own engine, and may write on its batch") {
  auto engine = language_model();
  engine.initialize();
  const auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2, 3}, {4, 5, 6, 7}});
  CHECK(contains(error_of([&] {
                   engine.forward_backward_batch(batch, [&](const LossInput& input) -> LossTerms {
                     engine.infer_batch(batch);
                     return nll(input);
                   });
                 }),
                 "forward_backward_batch: called from within its own loss closure"));
  engine.optimizer_zero_grad();
  engine.forward_backward_batch(batch, nll);
  const auto expected = engine.optimizer().main_grads().clone();
  engine.optimizer_zero_grad();
  engine.forward_backward_batch(batch, [](const LossInput& input) -> LossTerms {
    auto terms = nll(input);
    auto labels = input.batch.labels;
    labels.clamp_min_(0);
    auto ids = input.batch.input_ids;
    ids.zero_();
    return terms;
  });
  CHECK(max_difference(engine.optimizer().main_grads(), expected) == 0.0);
}

TEST_CASE("an output that was not asked for is told of in words") {
  auto engine = language_model();
  engine.initialize();
  const auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2, 3}});
  const auto message = error_of([&] {
    engine.infer_batch(batch, [](const LossInput& input) -> LossTerms {
      return {{"loss", input.entropy.sum(), 1.0}};
    });
  });
  CHECK(contains(message, "loss closure: "));
  CHECK(contains(message, "calculate_entropy"));
}

TEST_CASE("small temperatures lose no digits of what the logits say") {
  // Two tokens with the same logits share the probability, whatever the temperature: a logit over 1e-8 is so
  // large that the log of the sum of exponentials vanishes beside it in fp32.
  const auto tied = [](bool fused) {
    EngineConfig config;
    config.use_fused_kernels = fused;
    config.calculate_sum_pi_squared = true;
    return test::language_model<optimizer::Fp32>(test::Fixture("qwen3").folder, config);
  };
  auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 11, 3, 9}, {4, 7, 6}});
  for (const double temperature : {1e-8, 1e-4, 0.02}) {
    CAPTURE(temperature);
    batch.temperature = test::doubles({temperature});
    Tensor grads[2];
    for (const bool fused : {false, true}) {
      auto engine = tied(fused);
      engine.initialize();
      auto& module = engine.module();
      auto& head = module.output_layer ? module.output_layer->value : module.word_embeddings.value;
      head.select(0, 7).copy_(head.select(0, 11));
      const auto result = engine.forward_backward_batch(batch, [&](const LossInput& input) -> LossTerms {
        return {{"loss", input.log_probs.mul(temperature).sum().neg(), 5.0}};
      });
      grads[fused] = engine.optimizer().main_grads().clone();
      if (!fused) continue;
      // Of the model's own fp32 logits, in double.
      const auto log_p = engine.logits(batch).to(at::kDouble).div(temperature).log_softmax(-1);
      CHECK(max_difference(result.sum_pi_squared, log_p.mul(2.0).exp().sum(-1)) < 1e-6);
    }
    if (temperature != 1e-4)  // there whole logits over the temperature are themselves too coarse
      CHECK(max_difference(grads[1], grads[0]) < 1e-4 * grads[0].abs().max().item<double>() + 2e-6);
  }
}

TEST_CASE("one temperature a sequence is not taken for one a token") {
  auto engine = language_model();
  engine.initialize();
  auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2}, {}, {3}});
  batch.temperature = test::doubles({0.5, 9, 2});
  CHECK(contains(error_of([&] { engine.infer_batch(batch); }),
                 "batch: temperature has 3 entries, which is the number of the sequences and of the tokens"));
  batch.temperature = test::doubles({2, 2, 2});
  CHECK_NOTHROW(engine.infer_batch(batch));
}

TEST_CASE("a rank without sequences may give an empty batch") {
  auto engine = language_model();
  engine.initialize();
  const auto result = engine.infer_batch(Batch{});
  CHECK(result.log_probs.numel() == 0);
  CHECK(result.tokens == 0);
}

TEST_CASE("micro-batches by sequences, where a batch asks for that of an engine with a cap") {
  EngineConfig config;
  config.max_tokens_per_micro_batch = 100;
  auto engine = language_model(config);
  engine.initialize();
  auto batch = batch_of(std::vector<std::vector<std::int64_t>>{{1, 2}, {3, 4}, {5, 6}});
  CHECK(engine.infer_batch(batch).num_micro_batches == 1);
  batch.options.micro_batch_size = 1;
  CHECK(engine.infer_batch(batch).num_micro_batches == 3);
  batch.options.max_tokens_per_micro_batch = -5;
  CHECK(contains(error_of([&] { engine.infer_batch(batch); }), "max_tokens_per_micro_batch is -5"));
}

TEST_CASE("a model's source is given once") {
  LanguageModelEngine<parallel::Self, optimizer::Fp32> engine({}, {}, {}, test::constant_schedule(0, 0),
                                                              test::self_context());
  CHECK(contains(error_of([&] { engine.initialize(); }), "ModelConfig: set local_path"));
}

TEST_CASE("another model's checkpoint is refused, and changes nothing") {
  test::TemporaryFolder folder;
  auto critic = test::value_model<optimizer::Fp32>(test::Fixture("qwen3_value").folder);
  critic.initialize();
  critic.save_checkpoint((folder / "critic").string(), {3, 12});
  auto other = language_model<optimizer::Fp32>({}, "llama");
  other.initialize();
  other.save_checkpoint((folder / "llama").string(), {2, 8});

  auto actor = language_model<optimizer::Fp32>();
  actor.initialize();
  const auto before = actor.param_buffer().values.clone();
  CHECK(contains(error_of([&] { actor.load_checkpoint((folder / "critic").string()); }), "is a value model"));
  CHECK(contains(error_of([&] { actor.load_checkpoint((folder / "llama").string()); }),
                 "describes another model than this run's"));
  CHECK(contains(error_of([&] { critic.load_checkpoint((folder / "llama").string()); }), "another model"));
  CHECK(max_difference(actor.param_buffer().values, before) == 0.0);
  CHECK(actor.optimizer().inner().updates == 0);
}
