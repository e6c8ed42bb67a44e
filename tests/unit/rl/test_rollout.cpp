// Prompts and responses as a batch: which positions predict a response token.
#include <cmath>

#include "mgfl/base/error.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/rl/rollout.hpp"
#include "tests/support/fixture.hpp"

using namespace mgfl;

namespace {

using Sequences = std::vector<std::vector<std::int64_t>>;

template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), tensor.const_data_ptr<T>() + tensor.numel()};
}

const Sequences prompts{{5, 6}, {7}}, responses{{8, 9, 10}, {11}};

}  // namespace

TEST_CASE("the mask is 1 where the label is a response token") {
  const auto batch = rl::rollout_batch(prompts, responses);
  CHECK(values_of<std::int64_t>(batch.input_ids) == std::vector<std::int64_t>{5, 6, 8, 9, 10, 7, 11});
  CHECK(values_of<std::int64_t>(batch.labels) == std::vector<std::int64_t>{6, 8, 9, 10, -100, 11, -100});
  CHECK(values_of<float>(batch.loss_mask) == std::vector<float>{0, 1, 1, 1, 0, 1, 0});
  CHECK(values_of<std::int32_t>(batch.cu_seqlens) == std::vector<std::int32_t>{0, 5, 7});
}

TEST_CASE("log-probabilities inside the mask are those of the response, by the model's logits") {
  const test::Fixture fixture("llama");
  parallel::Self world, alone;
  LanguageModelEngine<parallel::Self, optimizer::Fp64> engine({fixture.folder}, {}, {},
                                                              scheduler::constant_schedule(0),
                                                              parallel::data_parallel_context(world, alone));
  engine.initialize();
  const auto batch = rl::rollout_batch(prompts, responses);
  const auto log_probs = engine.infer_batch(batch).log_probs;
  // The row of logits that sees the prompt and the response's first n tokens says the next one.
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    auto seen = prompts[s];
    auto position = static_cast<std::int64_t>(seen.size()) - 1 + (s == 0 ? 0 : 5);
    for (const auto next : responses[s]) {
      const auto logits = engine.logits(batch_of(Sequences{seen}));
      const auto row = logits.select(0, logits.size(0) - 1);
      const double expected = row.select(0, next).item<double>() - std::log(row.exp().sum().item<double>());
      CHECK(std::abs(log_probs.select(0, position).item<double>() - expected) < 1e-10);
      CHECK(batch.loss_mask.select(0, position).item<float>() == 1);
      seen.push_back(next);
      ++position;
    }
  }
}

TEST_CASE("a score stands at the last token of its response") {
  const auto batch = rl::rollout_batch(prompts, responses);
  const auto rewards = rl::token_level_scores(std::vector{2.0, -1.0}, batch.loss_mask, batch.cu_seqlens);
  CHECK(values_of<double>(rewards) == std::vector<double>{0, 0, 0, 2, 0, -1, 0});
}

TEST_CASE("each prompt stands n times in a row") {
  CHECK(rl::repeat_interleave(prompts, 2) == Sequences{{5, 6}, {5, 6}, {7}, {7}});
  CHECK(rl::repeat_interleave(Sequences{}, 2).empty());
  CHECK_THROWS_AS(rl::repeat_interleave(prompts, 0), UserError);
}

TEST_CASE("rollouts that do not fit are named") {
  CHECK_THROWS_WITH_AS(rl::rollout_batch(prompts, Sequences{{8}}),
                       "rollout: 1 responses to 2 prompts; give one prompt for each response.", UserError);
  CHECK_THROWS_WITH_AS(rl::rollout_batch(Sequences{{5}, {}}, responses),
                       "rollout: prompt 1 is empty; give it at least one token.", UserError);
  const auto batch = rl::rollout_batch(prompts, Sequences{{8}, {}});
  CHECK(values_of<float>(batch.loss_mask) == std::vector<float>{0, 1, 0, 0});
  CHECK_THROWS_WITH_AS(rl::token_level_scores(std::vector{1.0, 1.0}, batch.loss_mask, batch.cu_seqlens),
                       "rollout: sequence 1 has no response token that could carry its score; leave it out.",
                       UserError);
  CHECK_THROWS_WITH_AS(rl::token_level_scores(std::vector{1.0}, batch.loss_mask, batch.cu_seqlens),
                       "rollout: 1 scores for 2 sequences; give one for each.", UserError);
}
