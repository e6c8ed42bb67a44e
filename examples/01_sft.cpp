// Supervised fine-tuning: a Hugging Face folder goes in, one that transformers loads comes out. Alone, or as
// mpirun -n 2; any number of ranks gives the same numbers, to rounding.
//
//   01_sft MODEL_FOLDER OUT_FOLDER
#include <cstdio>

#include "mgfl/parallel/share.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/parallel/run.hpp"

namespace {

using namespace mgfl;

/// Eight token sequences of unlike lengths that count upwards: something to learn in a few steps.
std::vector<std::vector<std::int64_t>> counting() {
  std::vector<std::vector<std::int64_t>> sequences;
  for (std::int64_t s = 0; s < 8; ++s) {
    auto& sequence = sequences.emplace_back();
    for (std::int64_t t = 0; t < 6 + s; ++t) sequence.push_back(10 + 7 * s + t);
  }
  return sequences;
}

template <class C>
int fine_tune(parallel::Context<C> context, const char* model_folder, const char* out_folder) {
  constexpr int steps = 20;
  EngineConfig config;
  config.max_tokens_per_micro_batch = 32;             // a hard cap; sequences are packed without padding
  const optimizer::OptimizerConfig optimizer;         // AdamW's betas, clipping
  scheduler::OptimizerParamSchedulerConfig schedule;  // its lengths count lr_scheduler_step()
  schedule.max_lr = 2e-3;
  schedule.lr_warmup_steps = 2;
  schedule.lr_decay_steps = steps;
  schedule.lr_decay_style = scheduler::LrDecayStyle::cosine;

  // Every choice is a type: communicator, precision; AdamW and Megatron's schedule come with the alias.
  LanguageModelEngine<C, optimizer::Bf16WithFp32Main> engine({model_folder}, config, optimizer, schedule,
                                                             context);
  engine.initialize();

  // Each rank gives its share of the sequences; labels left out are next tokens.
  const auto sequences = counting();
  const auto [first, last] = parallel::share_of(static_cast<std::int64_t>(sequences.size()), *context.world);
  const auto batch = sequences_of(batch_of(sequences), first, last);

  for (int step = 0; step < steps; ++step) {
    const auto result = engine.train_batch(batch, SftLoss{});
    if (result.step.stepped) engine.lr_scheduler_step();  // a skipped step is a result, not an error
    if (context.world->rank() == 0)
      std::printf("step %2d  loss %.4f  lr %.2e  grad norm %.4f\n", step, result.loss(), result.lr,
                  result.step.grad_norm);
  }
  engine.save_hf_pretrained(out_folder);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER OUT_FOLDER\n", argv[0]);
    return 1;
  }
  return parallel::run([&](auto context) { return fine_tune(context, argv[1], argv[2]); });
}
