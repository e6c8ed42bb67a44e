// 200 steps of a small model from random weights: bf16 with fp32 main weights learns as fp32 does, bf16 alone
// does not. MGFL_PRECISION_CURVES=FILE writes the curves there, for tests/docs/plot_precision.py.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "policies/engine/megatron_engine.hpp"
#include "policies/rl/losses.hpp"
#include "tests/support/engines.hpp"

using namespace mgfl;

namespace {

/// AdamW without main weights: whatever an update leaves is rounded to bf16, the weights and both moments.
/// Gradients are still summed in fp32.
class Bf16AdamW {
 public:
  Bf16AdamW(const optimizer::ParamBuffer& buffer, const optimizer::OptimizerConfig& config)
      : adamw_(buffer, config) {}
  static std::vector<optimizer::ParamGroup> param_groups(const optimizer::OptimizerConfig& config) {
    return optimizer::AdamW::param_groups(config);
  }
  void step(optimizer::Shard& shard, const std::vector<optimizer::ParamGroup>& groups, double grad_scale) {
    adamw_.step(shard, groups, grad_scale);
    for (const auto& state : {shard.main_params, adamw_.exp_avg, adamw_.exp_avg_sq})
      state.copy_(state.to(at::kBFloat16));
  }
  void to(c10::DeviceType device) { adamw_.to(device); }

 private:
  optimizer::AdamW adamw_;
};

template <class O>
using TrainedBy =
    MegatronEngineWithLMHead<parallel::DataParallel<parallel::Self>, O, scheduler::OptimizerParamScheduler>;
using Fp32 = TrainedBy<optimizer::Local<optimizer::AdamW, optimizer::Fp32>>;
using Bf16WithMain = TrainedBy<optimizer::Local<optimizer::AdamW, optimizer::Bf16WithFp32Main>>;
using Bf16Alone = TrainedBy<optimizer::Local<Bf16AdamW, optimizer::Bf16WithFp32Main>>;

constexpr std::int64_t steps = 200, length = 24;

/// Sequences of a language of 64 tokens, in which two may follow each.
Batch sequences(std::mt19937_64& random, std::int64_t count) {
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(count));
  for (auto& sequence : all) {
    sequence = {test::below(random, 64)};
    while (static_cast<std::int64_t>(sequence.size()) < length)
      sequence.push_back((5 * sequence.back() + 3 + test::below(random, 2)) % 64);
  }
  auto batch = batch_of(all);
  batch.options.micro_batch_size = 8;
  return batch;
}

using Curve = std::vector<double>;  // loss of held-out sequences after 0, 10, 20, ... steps

/// `order` decides what is learned when; the weights at the start are always the same.
template <class E>
Curve train(unsigned order) {
  optimizer::OptimizerConfig config;
  config.lr = 1e-3;
  config.adam_beta2 = 0.99;
  scheduler::OptimizerParamSchedulerConfig schedule;
  schedule.lr_warmup_steps = 10;
  schedule.lr_decay_steps = steps;
  schedule.lr_decay_style = scheduler::LrDecayStyle::cosine;
  E engine({"", std::string(MGFL_TEST_DATA) + "/qwen3/config.json", 5}, {}, config, schedule,
           test::self_context());
  engine.initialize();
  std::mt19937_64 held_out(1), random(order);
  const auto evaluation = sequences(held_out, 32);
  Curve curve;
  for (std::int64_t step = 0; step <= steps; ++step) {
    if (step % 10 == 0) curve.push_back(engine.infer_batch(evaluation, SftLoss{}).loss());
    if (engine.train_batch(sequences(random, 8), SftLoss{}).step.stepped) engine.lr_scheduler_step();
  }
  return curve;
}

/// Where a curve ends: the mean of its last five points.
double end_of(const Curve& curve) {
  double sum = 0;
  for (std::size_t i = curve.size() - 5; i < curve.size(); ++i) sum += curve[i];
  return sum / 5;
}

}  // namespace

TEST_CASE("200 steps: bf16 with main weights ends within fp32's own noise, bf16 alone does not") {
  std::vector<std::pair<std::string, Curve>> curves;
  double lowest = INFINITY, highest = 0;
  for (unsigned order = 1; order <= 3; ++order) {
    curves.emplace_back(concat("fp32, order ", order), train<Fp32>(order));
    lowest = std::min(lowest, end_of(curves.back().second));
    highest = std::max(highest, end_of(curves.back().second));
  }
  curves.emplace_back("bf16 with fp32 main weights", train<Bf16WithMain>(1));
  curves.emplace_back("bf16 alone", train<Bf16Alone>(1));
  const double spread = highest - lowest, fp32 = end_of(curves[0].second);
  const double with_main = end_of(curves[3].second), alone = end_of(curves[4].second);
  MESSAGE("fp32 ends between " << lowest << " and " << highest << ", bf16 with main weights at " << with_main
                               << " (fp32, same order: " << fp32 << "), bf16 alone at " << alone);
  CHECK(spread > 0);
  CHECK(std::abs(with_main - fp32) <= spread);
  CHECK(alone - fp32 > 3 * spread);
  CHECK(fp32 < 0.75 * curves[0].second[0]);  // it learns
  if (const char* path = std::getenv("MGFL_PRECISION_CURVES")) {
    std::ofstream file(path);
    file << "step";
    for (const auto& [name, curve] : curves) file << ";" << name;
    for (std::size_t i = 0; i < curves[0].second.size(); ++i) {
      file << "\n" << 10 * i;
      for (const auto& [name, curve] : curves) file << ";" << curve[i];
    }
    file << "\n";
  }
}

TEST_CASE("300 micro-batches of bf16 have the mean gradient of one: the sum is fp32's") {
  Bf16WithMain engine({"", std::string(MGFL_TEST_DATA) + "/qwen3/config.json", 5}, {}, {},
                      test::constant_schedule(1e-3), test::self_context());
  engine.initialize();
  const auto gradients = [&](std::size_t count) {
    const std::vector<double> ones(count, 1.0);
    return test::gradients_of(engine, test::in_micro_batches_of(test::toy_batch(ones, ones), 1), SftLoss{});
  };
  const auto one = gradients(1), many = gradients(300);
  const double largest = one.abs().max().item<float>();
  CHECK(largest > 0);
  CHECK(test::max_difference(one, many) < 1e-5 * largest);  // a bf16 sum ends at 256 of 300
}
