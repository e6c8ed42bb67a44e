// Reinforcement learning without a critic: GRPO. Alone, or as mpirun -n 2, with the same numbers: each rank
// answers its share of the prompts, and every answer has its own stream of random numbers.
//
//   05_grpo MODEL_FOLDER
#include <algorithm>
#include <cstdio>

#include "mgfl/parallel/share.hpp"
#include "mgfl/tensor/tensor_of.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/model/generation.hpp"
#include "policies/parallel/run.hpp"
#include "policies/rl/advantages.hpp"
#include "policies/rl/losses.hpp"
#include "policies/rl/rollout.hpp"

namespace {

using namespace mgfl;
using Tokens = std::vector<std::int64_t>;

/// The toy task: answer with tokens of 20 to 59, whatever the prompt.
double reward_of(const Tokens& answer) {
  const auto good = std::count_if(answer.begin(), answer.end(), [](auto id) { return id >= 20 && id < 60; });
  return static_cast<double>(good) / static_cast<double>(answer.size());
}

template <class C>
int train(parallel::Context<C> context, const char* model_folder) {
  constexpr std::int64_t prompts_a_step = 4, group_size = 8, steps = 20;

  EngineConfig config;
  config.micro_batch_size = 2 * group_size;
  config.calculate_entropy = true;
  const optimizer::OptimizerConfig optimizer;  // AdamW's betas, clipping
  const auto schedule = scheduler::constant_schedule(/*lr=*/2e-3);
  LanguageModelEngine<C, optimizer::Fp64> actor({model_folder}, config, optimizer, schedule, context);
  actor.initialize();
  config.forward_only = true;  // the same weights, and no optimizer
  LanguageModelEngine<C, optimizer::Fp64> reference({model_folder}, config, optimizer, schedule, context);
  reference.initialize();

  rl::PolicyLoss loss;
  loss.config.kl_loss_coef = 0.01;
  MiniBatchConfig updates;
  updates.num_mini_batches = 2;
  updates.epochs = 2;
  model::SamplingConfig sampling;
  sampling.greedy = false;  // temperature 1
  sampling.max_new_tokens = 8;

  // This rank's prompts, each once for every answer of its group.
  const auto [first, last] = parallel::share_of(prompts_a_step, *context.world);
  std::vector<Tokens> prompts;
  for (auto p = first; p < last; ++p) prompts.push_back({100 + p, 110 + 2 * p, 120 + 3 * p});
  prompts = rl::repeat_interleave(prompts, group_size);
  Tokens index;  // the prompt of each answer
  for (auto p = first; p < last; ++p) index.insert(index.end(), group_size, p);

  for (std::int64_t step = 0; step < steps; ++step) {
    // Roll out. Streams count over all ranks and steps.
    const auto stream = (step * prompts_a_step + first) * group_size;
    const auto answers = model::generate(actor.module(), batch_of(prompts), sampling, stream);
    auto batch = rl::rollout_batch(prompts, answers);
    batch.groups = tensor_of(index);

    // Score.
    std::vector<double> rewards;
    double reward = 0;
    for (const auto& answer : answers) reward += rewards.emplace_back(reward_of(answer));
    reward = context.world->all_reduce_value(reward, ReduceOp::sum) / (prompts_a_step * group_size);
    const rl::Responses responses{rl::token_level_scores(rewards, batch.loss_mask, batch.cu_seqlens),
                                  batch.loss_mask, batch.cu_seqlens};

    // What the loss wants to know of each token, from before the update.
    batch.token_fields = {{"old_log_probs", actor.infer_batch(batch).log_probs},
                          {"ref_log_prob", reference.infer_batch(batch).log_probs},
                          {"advantages", rl::compute_grpo_outcome_advantage(responses, index).advantages}};

    const auto update = actor.train_mini_batch(batch, loss, updates).back();
    if (context.world->rank() == 0)
      std::printf("step %2d  reward %.6f  loss %9.6f  kl %.6f  entropy %.6f  grad norm %.6f\n",
                  static_cast<int>(step), reward, update.loss(), update.metric("kl_loss"),
                  update.metric("actor/entropy_loss"), update.step.grad_norm);
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
