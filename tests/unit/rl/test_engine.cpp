// Policy losses inside the engine: gradients of the model's weights know nothing of micro-batches.
#include <cmath>

#include "mgfl/tensor/factory.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/rl/losses.hpp"
#include "tests/support/fixture.hpp"

using namespace mgfl;

namespace {

parallel::Self world, alone;

/// Responses to prompts of 2 tokens, drawn from a policy that differs a little from the model.
struct RlBatch {
  Batch batch;
  Tensor old_log_probs, advantages, ref_log_prob;
};

/// The gradient of the mean loss in micro-batches of so many sequences.
Tensor gradient(const test::Fixture& fixture, const rl::PolicyLossConfig& config,
                std::int64_t micro_batch_size, double* loss) {
  EngineConfig engine_config;
  engine_config.micro_batch_size = micro_batch_size;
  engine_config.calculate_entropy = true;
  LanguageModelEngine<parallel::Self, optimizer::Fp64> engine({fixture.folder, "", 1}, engine_config, {},
                                                              test::constant_schedule(1e-3, 0.0),
                                                              parallel::data_parallel_context(world, alone));
  engine.initialize();
  RlBatch data{fixture.packed(), {}, {}, {}};
  auto& batch = data.batch;
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  batch.loss_mask.fill_(1.0);
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) batch.loss_mask.narrow(0, borders[s], 2).zero_();
  const auto log_probs = engine.forward_backward_batch(batch, SftLoss{}, true).log_probs;
  auto noise = zeros({batch.num_tokens()}, at::kDouble);
  for (std::int64_t t = 0; t < batch.num_tokens(); ++t)
    noise.data_ptr<double>()[t] = std::sin(1.7 * static_cast<double>(t));
  data.old_log_probs = log_probs.add(noise.mul(0.3));
  data.ref_log_prob = log_probs.sub(noise.mul(0.2));
  data.advantages = noise.mul(3.0).cos();

  const rl::PolicyLoss policy_loss{config};
  std::int64_t first = 0;  // micro-batches come in order
  const auto closure = [&](const LossInput& input) {
    const auto tokens = input.batch.num_tokens();
    const auto mine = [&](const Tensor& whole) { return whole.narrow(0, first, tokens); };
    auto terms = policy_loss({input.log_probs,
                              input.entropy,
                              input.batch.loss_mask,
                              input.batch.cu_seqlens,
                              mine(data.old_log_probs),
                              mine(data.advantages),
                              mine(data.ref_log_prob),
                              {}});
    first += tokens;
    return terms;
  };
  const auto result = engine.forward_backward_batch(batch, closure);
  *loss = result.loss();
  return engine.optimizer().main_grads().clone();
}

}  // namespace

TEST_CASE("the weights' gradients of policy losses are the same in any micro-batches") {
  const test::Fixture fixture("llama");
  for (const auto mode : {rl::PolicyLossMode::vanilla, rl::PolicyLossMode::gspo}) {
    for (const char* aggregation : {"token-mean", "seq-mean-token-mean"}) {
      CAPTURE(aggregation);
      rl::PolicyLossConfig config;
      config.mode = mode;
      config.entropy_coeff = 0.02;
      config.kl_loss_coef = 0.1;
      config.aggregation.mode = rl::loss_agg_mode(aggregation);
      double whole_loss = 0, split_loss = 0;
      const auto whole = gradient(fixture, config, 1000, &whole_loss);
      const auto split = gradient(fixture, config, 1, &split_loss);
      CHECK(std::isfinite(whole_loss));
      CHECK(whole.abs().max().item<double>() > 1e-3);
      CHECK(std::abs(whole_loss - split_loss) < 1e-12);
      CHECK(test::max_difference(whole, split) < 1e-12);
    }
  }
}
