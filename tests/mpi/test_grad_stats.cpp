// Gradient norms, found_inf and schedules of several ranks: original, default and musa against what one rank
// computes in long double from everything.
#include "tests/support/doctest.hpp"

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "mgfl/base/error.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/local.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"
#include "tests/mpi/public_name.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/override/scaled_grads.hpp"
#include "vendors/default/optimizer/clip_grads.hpp"
#include "vendors/default/optimizer/unscale_main_grads.hpp"
#include "vendors/default/scheduler/wsd_scheduler.hpp"
#include "vendors/musa/optimizer/clip_grads.hpp"

using namespace mgfl;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using parallel::GroupList;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double norm_types[] = {1.0, 1.5, 2.0, 3.0, infinity};
constexpr at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};

template <class V>
double norm(std::span<const Tensor> grads, double p, const GroupList<Mpi>& groups) {
  return implementation<targets::get_grad_norm_fp32, V>::template call<Mpi>(grads, p, groups);
}

/// Gaussian numbers, the same for equal seeds, rounded to `dtype`.
Tensor gaussian(at::IntArrayRef shape, at::ScalarType dtype, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> numbers(0.0, scale);
  Tensor wide = empty(shape, at::kDouble);
  for (std::int64_t i = 0; i < wide.numel(); ++i) wide.mutable_data_ptr<double>()[i] = numbers(engine);
  return wide.to(dtype);
}

/// This rank's gradients: as many and as large as the rank says, none on rank 1.
std::vector<Tensor> local_grads(int rank, at::ScalarType dtype) {
  if (rank == 1) return {};
  std::vector<Tensor> grads = {gaussian({61, 7}, dtype, 10u + static_cast<unsigned>(rank)),
                               empty({0}, dtype)};
  for (int i = 0; i < rank; ++i)
    grads.push_back(gaussian({100 * i + 1}, dtype,
                             100u * static_cast<unsigned>(rank) + static_cast<unsigned>(i),
                             std::pow(10.0, i - 2)));
  return grads;
}

/// Independent of the library: one long-double loop.
double long_double_norm(std::span<const double> values, double p) {
  long double total = 0;
  for (const double value : values) {
    const long double magnitude = std::fabs(value);
    total =
        std::isinf(p) ? std::max(total, magnitude) : total + std::pow(magnitude, static_cast<long double>(p));
  }
  return static_cast<double>(std::isinf(p) ? total : std::pow(total, 1.0L / static_cast<long double>(p)));
}

/// The gradients of all ranks, gathered in fp64, which holds every dtype exactly.
std::vector<double> gathered(const std::vector<Tensor>& grads, Mpi& world) {
  std::int64_t count = 0;
  for (const auto& grad : grads) count += grad.numel();
  const std::int64_t largest = world.all_reduce_value(count, ReduceOp::max);
  Tensor own = zeros({largest}, at::kDouble), all = empty({world.size(), largest}, at::kDouble);
  std::int64_t at = 0;
  for (const auto& grad : grads) {
    own.narrow(0, at, grad.numel()).copy_(grad.reshape({-1}));
    at += grad.numel();
  }
  world.all_gather(own, all);
  const double* data = all.const_data_ptr<double>();
  return {data, data + all.numel()};
}

/// Rows and columns of the ranks where their number allows a grid, else all of them twice removed: one group.
GroupList<Mpi> grid(RankGroups& ranks) {
  if (ranks.world.size() == 4) {
    Mpi* row = ranks.add({{0, 1}, {2, 3}});
    return {row, ranks.add({{0, 2}, {1, 3}})};
  }
  if (ranks.world.size() == 6) {
    Mpi* pair = ranks.add({{0, 1}, {2, 3}, {4, 5}});
    return {pair, ranks.add({{0, 2, 4}, {1, 3, 5}})};
  }
  return ranks.world;
}

}  // namespace

TEST_CASE("the norm of every rank is that of all gradients in long double") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  const auto list = grid(ranks);
  for (const auto dtype : dtypes) {
    CAPTURE(std::string(c10::toString(dtype)));
    const auto grads = local_grads(world.rank(), dtype);
    const auto all = gathered(grads, world);
    const Tensor one = gaussian({33}, dtype, 7u + static_cast<unsigned>(world.rank()));
    const auto ones = gathered({one}, world);
    for (const double p : norm_types) {
      CAPTURE(p);
      const double expected = long_double_norm(all, p);
      const std::vector<double> found = {
          norm<vendors::original>(grads, p, world),       norm<vendors::default_>(grads, p, world),
          norm<vendors::default_>(grads, p, list),        norm<vendors::musa>(grads, p, list),
          optimizer::get_grad_norm_fp32(grads, p, world), optimizer::get_grad_norm_fp32(one, p, world)};
      for (std::size_t i = 0; i + 1 < found.size(); ++i) {
        CAPTURE(i);
        CHECK(std::abs(found[i] / expected - 1) < 1e-13);
      }
      CHECK(std::abs(found.back() / long_double_norm(ones, p) - 1) < 1e-13);
      CHECK(mgfl_test::same_bits_everywhere(found, world));
    }
  }
}

TEST_CASE("every way to call the norm") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  const auto grads = local_grads(world.rank(), at::kFloat);
  const Tensor one = gaussian({5}, at::kFloat, 3);
  const std::vector<Mpi*> vector = {&world};
  using optimizer::get_grad_norm_fp32;
  const double local = get_grad_norm_fp32(grads), expected = norm<vendors::original>(grads, 2.0, world);
  const std::vector<double> own = gathered(grads, world);
  const auto share = own.size() / static_cast<std::size_t>(world.size());
  const double own_expected =
      long_double_norm(std::span(own).subspan(share * static_cast<std::size_t>(world.rank()), share), 2.0);
  CHECK(std::abs(local - own_expected) <= 1e-13 * own_expected);
  CHECK(get_grad_norm_fp32(grads, 2.0) == local);
  CHECK(get_grad_norm_fp32(std::span<const Tensor>(grads), 2, GroupList<Mpi>()) == local);
  CHECK(get_grad_norm_fp32(grads, 2, world) == expected);
  CHECK(get_grad_norm_fp32(grads, 2, vector) == expected);
  CHECK(get_grad_norm_fp32(grads, 2, std::span<Mpi* const>(vector)) == expected);
  CHECK(get_grad_norm_fp32(grads, 2, GroupList<Mpi>(world)) == expected);
  CHECK(get_grad_norm_fp32(one) == get_grad_norm_fp32(std::vector<Tensor>{one}));
  CHECK(get_grad_norm_fp32(one, infinity) == get_grad_norm_fp32(std::vector<Tensor>{one}, infinity));
}

TEST_CASE("nobody has gradients: the norm is 0") {
  RankGroups ranks;
  const auto list = grid(ranks);
  for (const double p : norm_types) {
    CHECK(norm<vendors::original>({}, p, ranks.world) == 0.0);
    CHECK(norm<vendors::default_>({}, p, list) == 0.0);
  }
}

TEST_CASE("NaN or infinity on the last rank makes the norm of all not finite") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  const auto list = grid(ranks);
  for (const auto dtype : dtypes)
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity}) {
      auto grads = local_grads(world.rank(), dtype);
      if (world.rank() == world.size() - 1) grads.push_back(zeros({3}, at::kDouble).fill_(bad).to(dtype));
      for (const double p : norm_types) {
        CHECK(!std::isfinite(norm<vendors::original>(grads, p, world)));
        CHECK(!std::isfinite(norm<vendors::default_>(grads, p, list)));
      }
    }
}

TEST_CASE("the original refuses a list of two groups, on every rank and before any communication") {
  RankGroups ranks;
  const auto list = grid(ranks);
  if (list.size() < 2) return;
  const auto grads = local_grads(ranks.world.rank(), at::kFloat);
  CHECK_THROWS_AS(norm<vendors::original>(grads, 2.0, list), UserError);
  mgfl_test::ScaledGrads<Mpi> scaled({}, 2.0, list);
  CHECK_THROWS_AS(mgfl_test::unscale<vendors::original>(scaled), UserError);
  ranks.world.barrier();
}

TEST_CASE("infinity on one rank is found by all; values are unscaled exactly") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  const auto list = grid(ranks);
  const auto run = [&](bool default_body, at::ScalarType dtype, int sick_rank, double bad, double scale) {
    std::vector<Tensor> grads;
    if (world.rank() != 1) {  // rank 1 is a stub
      Tensor grad = zeros({1000}, at::kDouble);
      for (std::int64_t i = 0; i < 1000; ++i) grad.mutable_data_ptr<double>()[i] = i % 128 + world.rank();
      if (world.rank() == sick_rank) grad.mutable_data_ptr<double>()[999] = bad;
      grads = {grad.to(dtype), gaussian({17}, dtype, 5)};
    }
    std::vector<Tensor> before;
    for (const auto& grad : grads) before.push_back(grad.to(at::kDouble).clone());
    bool found = false;
    if (default_body) {
      mgfl_test::ScaledGrads<Mpi> self(grads, scale, list);
      found = mgfl_test::unscale<vendors::default_>(self);
    } else {
      mgfl_test::ScaledGrads<Mpi> self(grads, scale, world);
      found = mgfl_test::unscale<vendors::original>(self);
    }
    for (std::size_t i = 0; i < grads.size(); ++i) {
      // fp64 gradients are scaled in fp64, others in fp32, and rounded once.
      const Tensor wide = dtype == at::kDouble ? before[i] : before[i].to(at::kFloat);
      const Tensor expected = wide.mul(1.0 / scale).to(dtype);
      CHECK(grads[i].to(at::kDouble).allclose(expected.to(at::kDouble), 0, 0, /*equal_nan=*/true));
    }
    return found;
  };
  for (const bool default_body : {false, true})
    for (const auto dtype : dtypes)
      for (const double scale : {1.0, 1024.0, 3.0}) {
        CAPTURE(default_body);
        CHECK(!run(default_body, dtype, -1, 0.0, scale));
        for (int sick = 0; sick < world.size(); ++sick) {
          if (sick == 1) continue;
          CHECK(run(default_body, dtype, sick, infinity, scale));
          CHECK(run(default_body, dtype, sick, std::numeric_limits<double>::quiet_NaN(), scale));
        }
      }
}

// ---- heterogeneous meshes: one model, whose two pipeline stages shard by unlike tensor parallelism ----

namespace {

enum class Shard {
  column,
  row,
  replicated
};  // output rows split, input columns split, whole on every tp rank

struct LogicalGrad {
  Tensor whole;
  Shard shard;
  int stage;
};

std::vector<LogicalGrad> logical_model() {
  std::vector<LogicalGrad> grads;
  for (int stage = 0; stage < 2; ++stage) {
    const unsigned seed = 40u + 10u * static_cast<unsigned>(stage);
    grads.push_back({gaussian({24, 10}, at::kFloat, seed), Shard::column, stage});
    grads.push_back({gaussian({6, 16}, at::kFloat, seed + 1, 30.0), Shard::row, stage});
    grads.push_back({gaussian({12}, at::kFloat, seed + 2, 1e-3), Shard::replicated, stage});
  }
  return grads;
}

/// A stage on ranks [first, first + tp * dp), tp fastest.
struct Mesh {
  int first, tp, dp;
  bool holds(int rank) const { return rank >= first && rank < first + tp * dp; }
};

/// What a rank brings to the norm: its shards; replicated parameters on tp rank 0 alone, and nothing on
/// data-parallel ranks but the first, so that each logical element counts once.
std::vector<Tensor> grads_for_norm(const std::vector<Mesh>& meshes, int rank) {
  std::vector<Tensor> result;
  for (int stage = 0; stage < 2; ++stage) {
    const Mesh& mesh = meshes[static_cast<std::size_t>(stage)];
    if (!mesh.holds(rank) || (rank - mesh.first) / mesh.tp > 0) continue;
    const int tp_rank = (rank - mesh.first) % mesh.tp;
    for (const auto& grad : logical_model()) {
      if (grad.stage != stage || (grad.shard == Shard::replicated && tp_rank > 0)) continue;
      const int dim = grad.shard == Shard::row ? 1 : 0;
      const std::int64_t share = grad.whole.size(dim) / (grad.shard == Shard::replicated ? 1 : mesh.tp);
      result.push_back(grad.whole.narrow(dim, share * tp_rank, share));  // a row shard is not contiguous
    }
  }
  return result;
}

void check_hetero(const std::vector<Mesh>& meshes, const GroupList<Mpi>& list, Mpi& world) {
  std::vector<double> whole;
  for (const auto& grad : logical_model()) {
    const Tensor wide = grad.whole.to(at::kDouble).contiguous();
    whole.insert(whole.end(), wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel());
  }
  parallel::check_axes_of_a_grid(list);
  const auto grads = grads_for_norm(meshes, world.rank());
  for (const double p : norm_types) {
    CAPTURE(p);
    const double expected = long_double_norm(whole, p);
    const std::vector<double> found = {norm<vendors::default_>(grads, p, list),
                                       norm<vendors::musa>(grads, p, list),
                                       norm<vendors::original>(grads, p, world)};
    for (const double value : found) CHECK(std::abs(value / expected - 1) < 1e-13);
    CHECK(mgfl_test::same_bits_everywhere(found, world));
  }
}

}  // namespace

TEST_CASE("two meshes of unlike tensor parallelism have the norm of the unsharded model") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  if (world.size() == 3) check_hetero({{0, 1, 1}, {1, 2, 1}}, world, world);        // tp 1; tp 2
  if (world.size() == 4) check_hetero({{0, 1, 2}, {2, 2, 1}}, grid(ranks), world);  // tp 1 x dp 2; tp 2
  if (world.size() == 6) {
    const auto list = grid(ranks);
    check_hetero({{0, 2, 1}, {2, 4, 1}}, list, world);  // tp 2; tp 4
    check_hetero({{0, 2, 1}, {2, 2, 2}}, list, world);  // tp 2; tp 2 x dp 2
    check_hetero({{0, 4, 1}, {4, 1, 2}}, list, world);  // tp 4; tp 1 x dp 2
    Mpi* triple = ranks.add({{0, 1, 2}, {3, 4, 5}});
    check_hetero({{0, 1, 2}, {2, 4, 1}}, {triple, ranks.add({{0, 3}, {1, 4}, {2, 5}})}, world);
  }
}

TEST_CASE("lists that are no axes of a grid are refused on every rank") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  const auto refused = [](const GroupList<Mpi>& list) {
    CHECK_THROWS_WITH_AS(parallel::check_axes_of_a_grid(list),
                         doctest::Contains("miss ranks, count them twice"), UserError);
  };
  parallel::check_axes_of_a_grid(GroupList<Mpi>());
  parallel::check_axes_of_a_grid(GroupList<Mpi>(world));
  if (world.size() == 1) return;
  std::vector<int> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
  Mpi* again = ranks.add({all});
  refused({&world, again});  // the same ranks under two names
  std::vector<int> others(all.begin() + 1, all.end());
  Mpi* mesh = ranks.add({{0}, others});
  refused({mesh, &world});  // "my own mesh, then everyone"
  if (world.size() == 3) {
    Mpi* row = ranks.add({{0, 1}, {2}});
    refused({row, ranks.add({{0, 2}, {1}})});  // rank 1 would miss rank 2
  }
  if (world.size() == 4) {
    Mpi* row = ranks.add({{0, 1}, {2, 3}});
    refused({row, ranks.add({{1, 0}, {2, 3}})});  // rows twice, never columns
  }
  if (world.size() == 8) {  // each rank's place fits, but the groups twist: rank 1 meets rank 7, not 3
    Mpi* row = ranks.add({{0, 1}, {2, 3}, {4, 5}, {6, 7}});
    refused({row, ranks.add({{0, 2}, {1, 7}, {4, 6}, {5, 3}})});
    parallel::check_axes_of_a_grid(GroupList<Mpi>{row, ranks.add({{0, 2, 4, 6}, {1, 3, 5, 7}})});
  }
  if (world.size() == 6) {
    Mpi* pair = ranks.add({{0, 1}, {2, 3}, {4, 5}});
    refused({pair, ranks.add({{0, 2, 4}, {5, 1, 3}})});  // the second three in another order: other bits
    refused({pair, ranks.add({{0, 2, 4}, {1, 5, 3}})});  // ranks 0 and 1 see nothing of it themselves
    Mpi* uneven = ranks.add({{0, 1}, {2, 3, 4, 5}});     // meshes of tp 2 and 4, then pairs across
    refused({uneven, ranks.add({{0, 2}, {1, 3}, {4, 5}})});
  }
}

TEST_CASE("the library's optimizer: one step over a list of groups") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  const auto list = grid(ranks);
  Mpi* alone = ranks.add({{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}});
  ParamDesc desc;
  desc.name = "weight";
  desc.shape = {40, 3};
  Tensor value, main_grad;
  auto buffer = optimizer::allocate_weights({{&desc, &value, &main_grad}}, at::kFloat);
  optimizer::allocate_training(buffer, at::kFloat);
  optimizer::OptimizerConfig config;
  config.clip_grad = 0.5;
  config.loss_scale = 8.0;
  using Optimizer = optimizer::MixedPrecisionOptimizer<optimizer::Fp16WithLossScaler, Mpi>;
  Optimizer adam(buffer, config, list, alone);
  const Tensor grad = gaussian({40, 3}, at::kFloat, 60u + static_cast<unsigned>(world.rank()));
  main_grad.copy_(grad.mul(8.0));
  const auto outcome = adam.step();
  CHECK(outcome.stepped);
  const double expected = long_double_norm(gathered({grad}, world), 2.0);
  CHECK(std::abs(outcome.grad_norm / expected - 1) < 1e-13);
  CHECK(mgfl_test::same_bits_everywhere({outcome.grad_norm}, world));
  if (world.rank() == world.size() - 1) main_grad.fill_(infinity);
  CHECK(adam.step().found_inf);
  if (world.size() > 1) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    Mpi* again = ranks.add({all});
    CHECK_THROWS_AS(Optimizer(buffer, config, {&world, again}, alone), UserError);
  }
}

// ---- schedulers ----

namespace {

double cosine(int step, double max_steps, double min_lr) {
  return static_cast<double>(min_lr +
                             0.5L * (1 + std::cos(std::numbers::pi_v<long double> * step / max_steps)));
}

double wsd(int step, double max_steps, double min_lr, double warmup_steps) {
  if (step < warmup_steps) return step / warmup_steps;
  if (step < max_steps * 0.9) return 1.0;
  const double progress = (step - max_steps * 0.9) / (max_steps * 0.1);
  return std::max(min_lr, static_cast<double>(std::pow(0.5L, progress)));
}

template <class Scheduler, class... Args>
std::vector<double> rates(int steps, Args... args) {
  optimizer::Optimizer optimizer;
  optimizer.param_groups.resize(2);
  Scheduler scheduler(optimizer, args...);
  std::vector<double> result;
  for (int i = 0; i < steps; ++i) {
    scheduler.step();
    CHECK(optimizer.param_groups[0].lr == optimizer.param_groups[1].lr);
    result.push_back(scheduler.get_lr());
  }
  return result;
}

template <class Formula>
void check_rates(const std::vector<double>& found, Formula formula) {
  double worst = 0;
  for (int step = 0; step < static_cast<int>(found.size()); ++step)
    worst = std::max(worst, std::abs(found[static_cast<std::size_t>(step)] - formula(step)));
  CHECK(worst < 1e-15);
}

}  // namespace

TEST_CASE("CosineAnnealingLR and WSDScheduler follow their formulas over whole runs, alike on all ranks") {
  RankGroups ranks;
  using Cosine = scheduler::original::CosineAnnealingLR;
  using Wsd = scheduler::WSDScheduler;
  static_assert(std::is_base_of_v<Cosine, Wsd> && std::is_base_of_v<Cosine, scheduler::CosineAnnealingLR>);
  for (const double min_lr : {0.0, 0.25, 0.7}) {
    CAPTURE(min_lr);
    const auto slow = rates<Cosine>(3001, 3000, min_lr), stable = rates<Wsd>(3001, 3000, min_lr);
    check_rates(slow, [&](int step) { return cosine(step, 3000, min_lr); });
    check_rates(stable, [&](int step) { return wsd(step, 3000, min_lr, 1000); });
    const auto short_run = rates<Wsd>(331, 300, min_lr, 40);
    check_rates(short_run, [&](int step) { return wsd(step, 300, min_lr, 40); });
    CHECK(mgfl_test::same_bits_everywhere(slow, ranks.world));
    CHECK(mgfl_test::same_bits_everywhere(stable, ranks.world));
    CHECK(mgfl_test::same_bits_everywhere(short_run, ranks.world));

    const auto by_name = mgfl_test::rates_by_public_name(3000, min_lr, 3001);
    CHECK(mgfl_test::same_bits_everywhere(by_name, ranks.world));
    using Active = active_vendor<targets::CosineAnnealingLR>;
    if constexpr (std::is_same_v<Active, vendors::default_>) CHECK(by_name == stable);
    if constexpr (std::is_same_v<Active, vendors::original>) CHECK(by_name == slow);
  }
}
