// Whole steps of one rank: norms of each type and what they clip, steps that are skipped, runs that end.
#include <cmath>
#include <limits>

#include "policies/optimizer/local.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"
#include "tests/support/params.hpp"

using namespace mgfl;
using optimizer::OptimizerConfig;
using optimizer::OptimizerKind;
using test::numbers;
using test::Params;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

parallel::Self alone;

template <class P>
using Stepper = optimizer::MixedPrecisionOptimizer<P, parallel::Self>;

OptimizerConfig plain_sgd() {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::sgd;
  config.sgd_momentum = 0;
  config.weight_decay = 0;
  config.lr = 1;
  config.log_num_zeros_in_grad = true;
  return config;
}

}  // namespace

TEST_CASE("norms of every type, and the step that they leave") {
  const double root = std::pow(std::pow(3, 1.5) + std::pow(4, 1.5) + std::pow(12, 1.5), 1 / 1.5);
  for (const auto& [p, norm] : {std::pair(2.0, 13.0), std::pair(1.0, 19.0), std::pair(infinity, 12.0),
                                std::pair(3.0, std::cbrt(27.0 + 64 + 1728)), std::pair(1.5, root)})
    for (const double clip : {0.0, 1.3, 100.0}) {
      CAPTURE(p);
      auto config = plain_sgd();
      config.grad_norm_type = p;
      config.clip_grad = clip;
      Params params({{2}, {3, 1}, {1}}, at::kDouble, at::kDouble);
      Stepper<optimizer::Fp64> sgd(params.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
      params.grads[0].copy_(test::doubles({3, -4}));
      params.grads[1].copy_(test::doubles({0, 12, 0}).view({3, 1}));
      const double before = numbers(params.values[1])[1];
      const auto result = sgd.step();
      CHECK(result.stepped);
      CHECK(std::abs(result.grad_norm - norm) < 1e-13 * norm);
      CHECK(result.num_zeros == 3);
      const double factor = clip > 0 && clip < norm ? clip / (norm + 1e-6) : 1;
      CHECK(std::abs(before - numbers(params.values[1])[1] - 12 * factor) < 1e-12);
    }
}

TEST_CASE(
    "the first update of a warm-up has the rate of position 0, and the last one's rates go on from there") {
  auto config = plain_sgd();
  config.clip_grad = 0;
  Params params({{1}}, at::kDouble, at::kDouble);
  Stepper<optimizer::Fp64> sgd(params.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
  scheduler::OptimizerParamSchedulerConfig rates;  // max_lr and the weight decay are the optimizer's
  rates.lr_warmup_steps = 4;
  rates.lr_decay_steps = 8;
  scheduler::OptimizerParamScheduler schedule(sgd, rates);
  for (const double rate : {0.0, .25, .5, .75, 1.0, .75, .5, .25, 0.0, 0.0}) {
    const double before = numbers(params.values[0])[0];
    CHECK(sgd.param_groups[1].lr == rate);
    params.grads[0].fill_(1.0);
    CHECK(sgd.step().stepped);
    CHECK(std::abs(before - numbers(params.values[0])[0] - rate) < 1e-15);
    schedule.step(1);
  }
}

TEST_CASE("a norm above the threshold skips the step, and nothing moves") {
  auto config = plain_sgd();
  config.sgd_momentum = 0.9;
  config.grad_norm_skip_threshold = 5;
  config.max_skipped_steps = 3;
  Params params({{2}}, at::kDouble, at::kDouble);
  Stepper<optimizer::Fp64> sgd(params.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
  const auto step = [&](double size) {
    params.grads[0].fill_(size);
    return sgd.step();
  };
  CHECK(step(1).stepped);
  const auto weights = numbers(params.values[0]), momentum = numbers(sgd.inner().sgd->momentum_buffer);
  for (int i = 0; i < 2; ++i) {
    const auto result = step(4);
    CHECK_FALSE(result.stepped);
    CHECK_FALSE(result.found_inf);
    CHECK(result.grad_norm == std::sqrt(32.0));
  }
  CHECK(numbers(params.values[0]) == weights);
  CHECK(numbers(sgd.inner().sgd->momentum_buffer) == momentum);
  CHECK(sgd.inner().updates == 1);
  CHECK(step(1).stepped);  // and the count starts anew
  step(4);
  step(4);
  const auto text = test::error_of([&] { step(4); });
  CHECK(text.find("the gradient norms of 3 steps in a row, the last one 5.65") != std::string::npos);
  CHECK(text.find("grad_norm_skip_threshold 5 ") != std::string::npos);
}

TEST_CASE("a norm that overflows skips the step") {
  Params params({{2}}, at::kDouble, at::kDouble);
  auto config = plain_sgd();
  Stepper<optimizer::Fp64> sgd(params.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
  params.grads[0].fill_(1e200);
  const auto before = numbers(params.values[0]);
  const auto result = sgd.step();
  CHECK_FALSE(result.stepped);
  CHECK(std::isinf(result.grad_norm));
  CHECK(numbers(params.values[0]) == before);
}

TEST_CASE("gradients that stay non-finite end the run: fp16 at its smallest scale, others at once") {
  OptimizerConfig config;
  config.max_skipped_steps = 4;
  config.initial_loss_scale = 8;
  config.min_loss_scale = 2;
  config.hysteresis = 1;
  const auto run = [&]<class P>(P, int overflows_before) {
    Params params({{3, 3}}, P::model_dtype, P::main_dtype);
    Stepper<P> adamw(params.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
    const auto step = [&](double value) {
      params.grads[0].fill_(value);
      return adamw.step();
    };
    const auto weights = numbers(params.values[0]);
    for (int i = 0; i < overflows_before + 3; ++i) {
      const auto result = step(i % 2 ? infinity : std::nan(""));
      CHECK(result.found_inf);
      CHECK(std::isnan(result.grad_norm));
      CHECK(numbers(params.values[0]) == weights);
      CHECK(adamw.inner().updates == 0);
    }
    CHECK(step(1.0).stepped);  // one finite step, and the count starts anew
    CHECK(adamw.inner().updates == 1);
    for (int i = 0; i < 3; ++i) step(infinity);
    return test::error_of([&] { step(infinity); });
  };
  const auto half = run(optimizer::Fp16WithLossScaler(), 2);  // 8, 4, then 2 for good
  CHECK(half.find("the gradients of 4 steps in a row were not finite, at a loss scale of 2 ") !=
        std::string::npos);
  for (const auto& text : {run(optimizer::Bf16WithFp32Main(), 0), run(optimizer::Fp32(), 0)})
    CHECK(text.find("the gradients of 4 steps in a row were not finite, at a loss scale of 1 ") !=
          std::string::npos);
  config.max_skipped_steps = 0;
  Params params({{1}}, at::kFloat, at::kFloat);
  Stepper<optimizer::Fp32> forever(params.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
  for (int i = 0; i < 100; ++i) {
    params.grads[0].fill_(infinity);
    CHECK_FALSE(forever.step().stepped);
  }
}

TEST_CASE("after a skipped step the next one is as if it had not been") {
  for (const auto kind : {OptimizerKind::adam, OptimizerKind::sgd}) {
    OptimizerConfig config;
    config.optimizer = kind;
    Params one({{9, 9}, {5}}, at::kBFloat16, at::kFloat), other({{9, 9}, {5}}, at::kBFloat16, at::kFloat);
    using Precision = optimizer::Bf16WithFp32Main;
    Stepper<Precision> skips(one.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
    Stepper<Precision> does_not(other.buffer, config, parallel::GroupList<parallel::Self>(), &alone);
    for (int step = 0; step < 6; ++step) {
      const auto grads = test::waves(one.buffer.numel, 0.7 + step);
      if (step == 2 || step == 3) {
        one.buffer.main_grads.copy_(grads);
        one.grads[1].narrow(0, 2, 1).fill_(step == 2 ? infinity : std::nan(""));
        CHECK(skips.step().found_inf);
        continue;
      }
      for (auto* params : {&one, &other}) params->buffer.main_grads.copy_(grads);
      CHECK(skips.step().grad_norm == does_not.step().grad_norm);
      CHECK(one.buffer.values.equal(other.buffer.values));
      CHECK(one.buffer.main_params.equal(other.buffer.main_params));
    }
    CHECK(skips.inner().updates == 4);
  }
}
