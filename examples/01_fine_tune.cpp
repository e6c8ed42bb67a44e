// Fine-tunes a Hugging Face model with a loss of one's own: a whole program against the library.
//
//   01_fine_tune MODEL_FOLDER OUT_FOLDER
#include <cstdio>

#include "mgfl/tensor/factory.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/parallel/launcher.hpp"

namespace {

/// Four sequences of eight tokens that count upwards: something a model can learn in a few steps.
mgfl::Batch counting(std::int64_t vocab_size) {
  constexpr std::int64_t sequences = 4, length = 8;
  mgfl::Batch batch;
  batch.input_ids = mgfl::empty({sequences * length}, at::kLong);
  batch.labels = mgfl::empty({sequences * length}, at::kLong);
  batch.loss_mask = mgfl::zeros({sequences * length}, at::kFloat).fill_(1.0);
  batch.cu_seqlens = mgfl::empty({sequences + 1}, at::kInt);
  for (std::int64_t i = 0; i < sequences * length; ++i) {
    batch.input_ids.data_ptr<std::int64_t>()[i] = (10 + i) % vocab_size;
    batch.labels.data_ptr<std::int64_t>()[i] = (11 + i) % vocab_size;
  }
  for (std::int64_t s = 0; s <= sequences; ++s)
    batch.cu_seqlens.data_ptr<std::int32_t>()[s] = static_cast<std::int32_t>(s * length);
  return batch;
}

int fine_tune(const char* model_folder, const char* out_folder) {
  using namespace mgfl;
  optimizer::OptimizerConfig optimizer;
  optimizer.lr = 1e-3;
  scheduler::OptimizerParamSchedulerConfig schedule;
  schedule.max_lr = optimizer.lr;
  schedule.lr_decay_steps = 20;
  schedule.lr_decay_style = scheduler::LrDecayStyle::cosine;

  parallel::Self world, alone;
  LanguageModelEngine<parallel::Self, optimizer::Bf16WithFp32Main> engine(
      {model_folder, "", 0}, {}, optimizer, schedule, parallel::data_parallel_context(world, alone));
  engine.initialize();

  // Focal loss: tokens that the model knows already count less. Any differentiable function of log_probs will
  // do.
  const auto focal = [](const LossInput& input) -> LossTerms {
    const auto weight = input.log_probs.exp().neg().add(1.0).mul(input.batch.loss_mask);
    return {{"focal", weight.mul(input.log_probs).sum().neg(), ordered_sum(input.batch.loss_mask)},
            {"nll", input.log_probs.sum().neg(), ordered_sum(input.batch.loss_mask), /*is_loss=*/false}};
  };
  const auto batch = counting(engine.config().vocab_size);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(batch, focal);
    const auto outcome = engine.optimizer_step();
    if (outcome.stepped) engine.lr_scheduler_step();
    last = result.loss();
    if (step == 0) first = last;
    std::printf("step %2d  focal %.4f  nll %.4f  grad norm %.4f\n", step, last, result.metrics[1].value(),
                outcome.grad_norm);
  }
  engine.save_hf_pretrained(out_folder);
  return last < first ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER OUT_FOLDER\n", argv[0]);
    return 1;
  }
  return mgfl::parallel::run_guarded([&] { return fine_tune(argv[1], argv[2]); });
}
