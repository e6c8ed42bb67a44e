// An optimizer of one's own: Lion in AdamW's place. Clipping, loss scaling, skipped steps, offload and data
// parallelism stay the library's.
//
//   03_custom_optimizer MODEL_FOLDER
#include <cstdio>

#include "mgfl/tensor/factory.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/parallel/launcher.hpp"

namespace {

using namespace mgfl;

/// Lion, arXiv 2302.06675: every weight moves by lr, in the direction of an average of gradients. One state
/// tensor, where AdamW has two.
class Lion {
 public:
  Lion(const optimizer::ParamBuffer& buffer, const optimizer::OptimizerConfig& config)
      : momentum_(zeros({buffer.main_params.numel()}, buffer.main_params.scalar_type())),
        beta1_(config.adam_beta1),
        beta2_(config.adam_beta2),
        segments_(optimizer::segments_of(buffer, config)) {}

  /// Group 0 for matrices and embeddings, which decay; group 1 for norms and biases; more for decoupled_lr.
  static std::vector<optimizer::ParamGroup> param_groups(const optimizer::OptimizerConfig& config) {
    return optimizer::param_groups_of(config);
  }

  /// All parameters lie in flat buffers, of which this rank updates a shard: all of it with Local. The
  /// schedule has written lr and weight decay into the groups.
  void step(optimizer::Shard& shard, const std::vector<optimizer::ParamGroup>& groups, double grad_scale) {
    for (const auto& segment : segments_) {
      const auto cut = [&](const Tensor& flat) {
        return flat.narrow(0, segment.begin, segment.end - segment.begin);
      };
      const auto& group = groups[segment.group];
      auto weights = cut(shard.main_params), momentum = cut(momentum_);
      const auto grads = cut(shard.main_grads).mul(grad_scale);
      const auto direction = momentum.mul(beta1_).add(grads, 1 - beta1_).sign();
      weights.mul_(1 - group.lr * group.weight_decay).sub_(direction, group.lr);
      momentum.mul_(beta2_).add_(grads, 1 - beta2_);
    }
    shard.values.copy_(shard.main_params);  // rounds; in fp32 both are one tensor
  }

  void to(c10::DeviceType device) { momentum_ = momentum_.to(c10::Device(device)); }

 private:
  Tensor momentum_;
  double beta1_, beta2_;
  std::vector<optimizer::Segment> segments_;
};

static_assert(optimizer::FlatOptimizer<Lion>);

// The library has compiled its own engines; this one the compiler makes here, from the same templates.
using LionEngine =
    MegatronEngineWithLMHead<parallel::DataParallel<parallel::Self>, optimizer::Local<Lion, optimizer::Fp32>,
                             scheduler::OptimizerParamScheduler>;

int fine_tune(const char* model_folder) {
  optimizer::OptimizerConfig optimizer;
  optimizer.adam_beta2 = 0.99;
  scheduler::OptimizerParamSchedulerConfig schedule;
  schedule.max_lr = 1e-3;
  schedule.lr_decay_steps = 20;
  schedule.lr_decay_style = scheduler::LrDecayStyle::cosine;
  schedule.start_wd = schedule.end_wd = 0.1;

  parallel::Self world, alone;
  LionEngine engine({model_folder}, {}, optimizer, schedule, parallel::data_parallel_context(world, alone));
  engine.initialize();

  const std::vector<std::vector<std::int64_t>> sequences{{10, 11, 12, 13, 14, 15, 16}, {21, 23, 25, 27}};
  const auto batch = batch_of(sequences);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const auto result = engine.train_batch(batch, SftLoss{});
    if (result.step.stepped) engine.lr_scheduler_step();
    last = result.loss();
    if (step == 0) first = last;
    std::printf("step %2d  loss %.4f  lr %.2e\n", step, last, result.lr);
  }
  return last < first / 2 ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER\n", argv[0]);
    return 1;
  }
  return parallel::run_guarded([&] { return fine_tune(argv[1]); });
}
