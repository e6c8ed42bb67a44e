// Steps of ranks that hold different parameters, in groups that are the axes of a grid: norms of every type,
// tied and replicated weights that count once, and what one rank alone finds.
#include "tests/support/doctest.hpp"

#include <cmath>
#include <limits>

#include "policies/optimizer/distributed.hpp"
#include "policies/optimizer/local.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/support/params.hpp"

using namespace mgfl;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using mgfl_test::same_bits_everywhere;
using parallel::GroupList;
using test::numbers;
using test::Params;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class P, class Sharding = optimizer::Replicated>
using Stepper = optimizer::MixedPrecisionOptimizer<P, Mpi, optimizer::AdamW, Sharding>;

/// The rows and the columns of four ranks in a square; one group of any other number.
GroupList<Mpi> square(RankGroups& ranks) {
  if (ranks.world.size() != 4) return ranks.world;
  Mpi* row = ranks.add({{0, 1}, {2, 3}});
  return {row, ranks.add({{0, 2}, {1, 3}})};
}

}  // namespace

TEST_CASE("norms of every type over a grid of ranks, zeros too") {
  RankGroups ranks;
  auto& world = ranks.world;
  const auto list = square(ranks);
  auto alone = world.split(world.rank(), 0, "alone");
  const auto n = static_cast<double>(world.size());
  for (const double p : {1.0, 1.5, 2.0, 3.0, infinity}) {
    CAPTURE(p);
    optimizer::OptimizerConfig config;
    config.optimizer = optimizer::OptimizerKind::sgd;
    config.sgd_momentum = config.weight_decay = 0;
    config.lr = 1;
    config.grad_norm_type = p;
    config.clip_grad = 0.5;
    config.log_num_zeros_in_grad = true;
    Params params({{3}, {2, 2}}, at::kDouble, at::kDouble);
    Stepper<optimizer::Fp64> sgd(params.buffer, config, list, &alone);
    const double size = world.rank() + 1.0;  // rank r brings r + 1 twice, and five zeros
    params.grads[0].copy_(test::doubles({size, 0, 0}));
    params.grads[1].copy_(test::doubles({0, 0, 0, -size}).view({2, 2}));
    const double before = numbers(params.values[1])[3];
    const auto result = sgd.step();
    double power = 0;
    for (double r = 1; r <= n; ++r) power += 2 * std::pow(r, p);
    const double norm = std::isinf(p) ? n : std::pow(power, 1 / p);
    CHECK(std::abs(result.grad_norm - norm) < 1e-13 * norm);
    CHECK(result.num_zeros == 5 * world.size());
    CHECK(std::abs(numbers(params.values[1])[3] - before - size * 0.5 / (norm + 1e-6)) < 1e-13);
    CHECK(same_bits_everywhere({result.grad_norm}, world));
  }
}

TEST_CASE("a shard's norms are combined before the groups', by powers or by the maximum") {
  RankGroups ranks;
  auto& world = ranks.world;
  auto alone = world.split(world.rank(), 0, "alone");
  for (const double p : {1.0, 2.0, 3.0, infinity}) {
    optimizer::OptimizerConfig config;
    config.grad_norm_type = p;
    Params params({{100}, {40, 9}, {3}}, at::kDouble, at::kDouble, std::pair(world.rank(), world.size()));
    Stepper<optimizer::Fp64, optimizer::Sharded> adamw(params.buffer, config, alone, &world);
    for (auto& grad : params.grads) grad.copy_(test::waves(grad.numel()).view(grad.sizes()));
    adamw.reduce_grads();
    double power = 0;
    for (const auto count : {100, 360, 3})
      for (const double g : numbers(test::waves(count))) {
        const double all = std::abs(g) * world.size();
        power = std::isinf(p) ? std::max(power, all) : power + std::pow(all, p);
      }
    const double norm = std::isinf(p) ? power : std::pow(power, 1 / p);
    CHECK(std::abs(adamw.grad_norm() / norm - 1) < 1e-13);
  }
}

TEST_CASE("tied and replicated weights count once: each rank brings what counts on it") {
  RankGroups ranks;
  auto& world = ranks.world;
  if (world.size() != 2) return;
  // Two pipeline stages hold the tied gradient [7, 11], of which stage 1's copy does not count.
  const std::vector<Tensor> first{test::doubles({7, 11}), test::doubles({2})}, last{test::doubles({6})};
  const auto& of_stage = world.rank() == 0 ? first : last;
  CHECK(std::abs(optimizer::get_grad_norm_fp32(of_stage, 2.0, world) - 14.4913767) < 5e-8);
  // Two tensor-parallel ranks: a norm's [3, 4] on both, a sharded [1, 2] and [2, 4].
  const std::vector<Tensor> rank0{test::doubles({3, 4}), test::doubles({1, 2})}, rank1{test::doubles({2, 4})};
  const auto& of_rank = world.rank() == 0 ? rank0 : rank1;
  const double norm = optimizer::get_grad_norm_fp32(of_rank, 2.0, GroupList<Mpi>(world));
  CHECK(std::abs(norm - 7.0710678) < 5e-8);
  CHECK(std::abs(1.0 / (norm + 1e-6) - 0.1414214) < 1e-7);
}

TEST_CASE("a replicated weight counts on the first tensor-parallel rank, in norms and zeros of a step") {
  RankGroups ranks;
  auto& world = ranks.world;
  if (world.size() != 2) return;
  auto alone = world.split(world.rank(), 0, "alone");
  ParamDesc norm, sharded;
  norm.name = "norm";
  norm.shape = {2};
  sharded.name = "sharded";
  sharded.shape = {4, 1};
  sharded.placement = PlacementKind::column;
  norm.tp = sharded.tp = {world.rank(), 2};
  Tensor values[2], grads[2];
  auto buffer = optimizer::allocate_weights(
      {{&norm, &values[0], &grads[0]}, {&sharded, &values[1], &grads[1]}}, at::kDouble);
  optimizer::allocate_training(buffer, at::kDouble);
  optimizer::OptimizerConfig config;
  config.optimizer = optimizer::OptimizerKind::sgd;
  config.sgd_momentum = config.weight_decay = 0;
  config.lr = 1;
  config.log_num_zeros_in_grad = true;
  Stepper<optimizer::Fp64> sgd(buffer, config, world, &alone);
  grads[0].copy_(test::doubles({3, 4}));
  grads[1].copy_((world.rank() == 0 ? test::doubles({1, 2}) : test::doubles({2, 4})).view({2, 1}));
  const auto result = sgd.step();
  CHECK(std::abs(result.grad_norm - std::sqrt(50.0)) < 1e-13);  // counted twice: 8.66
  CHECK(result.num_zeros == 0);
  CHECK(std::abs(numbers(values[0])[1] + 4 * 0.1414214) < 1e-6);
  grads[0].copy_(test::doubles({0, 1}));
  grads[1].zero_();
  const auto next = sgd.step();
  CHECK(next.grad_norm == 1.0);
  CHECK(next.num_zeros == 5);
}

TEST_CASE_TEMPLATE(
    "what one rank finds skips the step on all of a grid; the next one is as if it had not been", P,
    optimizer::Bf16WithFp32Main, optimizer::Fp16WithLossScaler) {
  RankGroups ranks;
  auto& world = ranks.world;
  const auto list = square(ranks);
  auto alone = world.split(world.rank(), 0, "alone");
  for (const auto kind : {optimizer::OptimizerKind::adam, optimizer::OptimizerKind::sgd})
    for (int sick = 0; sick < world.size(); ++sick)
      for (const double bad : {infinity, -infinity, std::nan("")}) {
        CAPTURE(sick);
        optimizer::OptimizerConfig config;
        config.optimizer = kind;
        config.initial_loss_scale = 1024;  // the hysteresis of 2 keeps it after one overflow
        const Params::Shapes shapes{{9, 5}, {17}};
        Params one(shapes, P::model_dtype, P::main_dtype), other(shapes, P::model_dtype, P::main_dtype);
        Stepper<P> skips(one.buffer, config, list, &alone), does_not(other.buffer, config, list, &alone);
        scheduler::OptimizerParamSchedulerConfig rates;
        rates.max_lr = 0.1;
        rates.lr_decay_steps = 10;
        scheduler::OptimizerParamScheduler schedule(skips, rates), clean(does_not, rates);
        const auto states = [](Stepper<P>& optimizer) {
          std::vector<double> all = numbers(optimizer.buffer().values);
          const auto append = [&](const Tensor& part) {
            for (const double value : numbers(part)) all.push_back(value);
          };
          append(optimizer.buffer().main_params);
          for (const auto& state : optimizer.inner().states()) append(state.second);
          all.push_back(static_cast<double>(optimizer.inner().updates));
          return all;
        };
        const auto step = [&](Stepper<P>& optimizer, scheduler::OptimizerParamScheduler& scheduler,
                              Params& params, int number, bool overflow) {
          for (std::size_t i = 0; i < params.grads.size(); ++i)
            params.grads[i].copy_(test::waves(params.grads[i].numel(), 1.0 + number + world.rank())
                                      .mul(P::scales_loss ? 1024.0 : 1.0)
                                      .view(params.grads[i].sizes()));
          if (overflow && world.rank() == sick) params.grads[1].narrow(0, 16, 1).fill_(bad);
          const auto result = optimizer.step();
          if (result.stepped) scheduler.step(1);
          return result;
        };
        CHECK(step(skips, schedule, one, 0, false).stepped);
        CHECK(step(does_not, clean, other, 0, false).stepped);
        const auto before = states(skips);
        const auto skipped = step(skips, schedule, one, 1, true);
        CHECK(skipped.found_inf);
        CHECK_FALSE(skipped.stepped);
        CHECK(states(skips) == before);
        CHECK(schedule.num_steps() == 1);
        CHECK(skips.param_groups[0].lr == does_not.param_groups[0].lr);
        const auto next = step(skips, schedule, one, 2, false),
                   expected = step(does_not, clean, other, 2, false);
        CHECK(next.stepped);
        CHECK(next.grad_norm == expected.grad_norm);
        CHECK(states(skips) == states(does_not));
        CHECK(skips.inner().updates == 2);
        CHECK(same_bits_everywhere({next.grad_norm, skips.loss_scale()}, world));
      }
}

TEST_CASE("all ranks of a grid end a run of skipped steps together") {
  RankGroups ranks;
  auto& world = ranks.world;
  const auto list = square(ranks);
  auto alone = world.split(world.rank(), 0, "alone");
  optimizer::OptimizerConfig config;
  config.max_skipped_steps = 3;
  Params params({{4}}, at::kFloat, at::kFloat);
  Stepper<optimizer::Fp32> adamw(params.buffer, config, list, &alone);
  const auto step = [&] {
    params.grads[0].fill_(world.rank() == world.size() - 1 ? infinity : 1.0);
    return adamw.step();
  };
  CHECK(step().found_inf);
  CHECK(step().found_inf);
  CHECK_THROWS_WITH_AS(step(), doctest::Contains("3 steps in a row were not finite, at a loss scale of 1 "),
                       RunError);
}
