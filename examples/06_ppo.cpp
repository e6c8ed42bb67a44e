// Reinforcement learning with a critic: PPO. Actor, critic and reference come from one folder; the critic's
// head is new. Alone, or as mpirun -n 2, with the same numbers.
//
//   06_ppo MODEL_FOLDER
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "mgfl/parallel/share.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/model/generation.hpp"
#include "policies/parallel/run.hpp"
#include "policies/rl/advantages.hpp"
#include "policies/rl/losses.hpp"
#include "policies/rl/rollout.hpp"

namespace {

using namespace mgfl;
using Tokens = std::vector<std::int64_t>;

/// The toy task: answer with tokens of 20 to 59, whatever the prompt. From -1, none of them, to 1, no other.
double reward_of(const Tokens& answer) {
  const auto good = std::count_if(answer.begin(), answer.end(), [](auto id) { return id >= 20 && id < 60; });
  return 2.0 * static_cast<double>(good) / static_cast<double>(answer.size()) - 1.0;
}

template <class C>
int train(parallel::Context<C> context, const char* model_folder) {
  constexpr std::int64_t answers_a_step = 32, steps = 20;
  constexpr double kl_in_reward = 0.01;

  EngineConfig config;
  config.micro_batch_size = 16;
  config.param_offload = config.optimizer_offload = true;  // on config.device in its modes only
  const optimizer::OptimizerConfig optimizer;              // AdamW's betas, clipping
  const auto schedule = scheduler::constant_schedule(/*lr=*/2e-3);
  ValueModelEngine<C, optimizer::Fp64> critic({model_folder}, config, optimizer, schedule, context);
  config.calculate_entropy = true;
  LanguageModelEngine<C, optimizer::Fp64> actor({model_folder}, config, optimizer, schedule, context);
  config.forward_only = true;
  LanguageModelEngine<C, optimizer::Fp64> reference({model_folder}, config, optimizer, schedule, context);
  actor.initialize();
  critic.initialize();
  reference.initialize();

  rl::PolicyLoss policy_loss;
  policy_loss.config.entropy_coeff = 0.001;
  const rl::ValueLoss value_loss;  // clipped
  MiniBatchConfig updates;
  updates.num_mini_batches = 2;
  updates.epochs = 2;
  model::SamplingConfig sampling;
  sampling.greedy = false;
  sampling.max_new_tokens = 8;
  auto& group = actor.get_data_parallel_group();

  const auto [first, last] = parallel::share_of(answers_a_step, group);
  std::vector<Tokens> prompts;
  for (auto p = first; p < last; ++p) prompts.push_back({100 + p, 110 + 2 * p, 120 + 3 * p});

  for (std::int64_t step = 0; step < steps; ++step) {
    Batch batch;
    std::vector<double> rewards;
    {  // Roll out and score; guards bring weights to the device and back.
      const auto actor_mode = actor.eval_mode();
      const auto critic_mode = critic.eval_mode();
      const auto reference_mode = reference.eval_mode();
      const auto answers =
          model::generate(actor.module(), batch_of(prompts), sampling, step * answers_a_step + first);
      for (const auto& answer : answers) rewards.push_back(reward_of(answer));
      batch = rl::rollout_batch(prompts, answers);
      batch.token_fields = {{"old_log_probs", actor.infer_batch(batch).log_probs},
                            {"ref_log_prob", reference.infer_batch(batch).log_probs},
                            {"values", critic.infer_batch(batch).values}};
    }
    auto& fields = batch.token_fields;

    // The score at the last token, and at every token what straying from the reference costs.
    const auto strayed =
        rl::kl_penalty(fields.at("old_log_probs"), fields.at("ref_log_prob"), rl::KlPenalty::kl);
    const rl::Responses responses{
        rl::token_level_scores(rewards, batch.loss_mask, batch.cu_seqlens).sub(strayed, kl_in_reward),
        batch.loss_mask, batch.cu_seqlens};
    const auto over_ranks = [&](Tensor& totals) { group.all_reduce(totals, ReduceOp::sum); };
    const auto gae = rl::compute_gae_advantage_return(responses, fields.at("values"), /*gamma=*/1.0,
                                                      /*lam=*/0.95, /*whiten=*/true, over_ranks);
    fields.set("advantages", gae.advantages);
    fields.set("returns", gae.returns);

    const auto value_error = [&] {  // before the first update
      const auto mode = critic.train_mode();
      return critic.train_mini_batch(batch, value_loss, updates).front().loss();
    }();
    const auto update = [&] {  // after all of them but the last
      const auto mode = actor.train_mode();
      return actor.train_mini_batch(batch, policy_loss, updates).back();
    }();

    double reward = std::accumulate(rewards.begin(), rewards.end(), 0.0);
    reward = group.all_reduce_value(reward, ReduceOp::sum) / answers_a_step;
    if (group.rank() == 0)
      std::printf("step %2d  reward %.6f  loss %9.6f  value loss %.6f  kl %.6f  entropy %.6f\n",
                  static_cast<int>(step), reward, update.loss(), value_error, update.metric("kl_loss"),
                  update.metric("actor/entropy_loss"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER\n", argv[0]);
    return 1;
  }
  return parallel::run([&](auto context) { return train(context, argv[1]); });
}
