// A loss of one's own: the focal loss, by which tokens that the model knows already count less.
//
//   02_custom_loss MODEL_FOLDER
#include <cstdio>

#include "policies/engine/megatron_engine.hpp"
#include "policies/parallel/launcher.hpp"

namespace {

using namespace mgfl;

/// Any differentiable function of log_probs will do. A term is a sum and the count to divide by; the engine
/// adds both up over micro-batches and ranks and divides once, so the numbers do not depend on how a batch is
/// split.
LossTerms focal(const LossInput& input) {
  const auto& mask = input.batch.loss_mask;
  const auto nll = input.log_probs.neg().mul(mask);
  const auto weight = input.log_probs.exp().neg().add(1.0);
  const double count = ordered_sum(mask);
  return {
      {"focal", weight.mul(nll).sum(), count},
      {"nll", nll.sum(), count, /*is_loss=*/false},  // reported only
      {"hardest token", nll.max(), 1, /*is_loss=*/false, MetricAggregation::max},
  };
}

int fine_tune(const char* model_folder) {
  scheduler::OptimizerParamSchedulerConfig schedule;
  schedule.max_lr = 1e-3;
  schedule.lr_decay_steps = 20;
  schedule.lr_decay_style = scheduler::LrDecayStyle::cosine;

  parallel::Self world, alone;
  LanguageModelEngine<parallel::Self, optimizer::Bf16WithFp32Main> engine(
      {model_folder}, {}, {}, schedule, parallel::data_parallel_context(world, alone));
  engine.initialize();

  const std::vector<std::vector<std::int64_t>> sequences{{10, 11, 12, 13, 14, 15, 16}, {21, 23, 25, 27}};
  const auto batch = batch_of(sequences);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    // What train_batch does, in its parts.
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(batch, focal);
    const auto outcome = engine.optimizer_step();
    if (outcome.stepped) engine.lr_scheduler_step();
    last = result.loss();
    if (step == 0) first = last;
    std::printf("step %2d  focal %.4f  nll %.4f  hardest token %.4f  grad norm %.4f\n", step, last,
                result.metric("nll"), result.metric("hardest token"), outcome.grad_norm);
  }
  return last < first ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER\n", argv[0]);
    return 1;
  }
  return parallel::run_guarded([&] { return fine_tune(argv[1]); });
}
