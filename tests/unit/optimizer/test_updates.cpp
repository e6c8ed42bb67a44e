// AdamW and SGD against their definitions, written out in double for one element, whole and in shards.
#include <cmath>
#include <memory>
#include <random>

#include "policies/optimizer/local.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/params.hpp"

using namespace mgfl;
using optimizer::OptimizerConfig;
using optimizer::OptimizerKind;
using test::numbers;
using test::Params;

namespace {

/// One element, after torch.optim.AdamW and torch.optim.SGD.
struct Element {
  double weight, m = 0, v = 0;

  void step(const OptimizerConfig& c, int update, double grad, double lr, double weight_decay) {
    if (c.optimizer == OptimizerKind::sgd) {
      const double d = grad + weight_decay * weight;
      m = update == 1 ? d : c.sgd_momentum * m + d;  // torch's first buffer is a copy of d
      weight -= lr * m;
      return;
    }
    weight -= lr * weight_decay * weight;
    m = c.adam_beta1 * m + (1 - c.adam_beta1) * grad;
    v = c.adam_beta2 * v + (1 - c.adam_beta2) * grad * grad;
    const double m_hat = m / (1 - std::pow(c.adam_beta1, update));
    const double v_hat = v / (1 - std::pow(c.adam_beta2, update));
    weight -= lr * m_hat / (std::sqrt(v_hat) + c.adam_eps);
  }
};

const Params::Shapes shapes{{37, 5}, {130}, {1}, {20, 11}, {7}};

/// 100 random steps on every shard of `size`, the largest distance from the definition.
double distance(const OptimizerConfig& config, at::ScalarType model, at::ScalarType main, int size) {
  std::vector<std::unique_ptr<Params>> shards;
  std::vector<optimizer::AdamW> kinds;
  for (int rank = 0; rank < size; ++rank) {
    shards.push_back(std::make_unique<Params>(shapes, model, main, std::pair(rank, size)));
    kinds.emplace_back(shards.back()->buffer, config);
  }
  std::vector<std::vector<Element>> expected(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i)
    for (const double weight : numbers(shards[0]->values[i])) expected[i].push_back({weight});

  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  auto groups = optimizer::param_groups_of(config);
  double worst = 0;
  for (int update = 1; update <= 100; ++update) {
    groups[0].lr = groups[1].lr = 1e-2 * (1 + update % 3);
    groups[0].weight_decay = 0.1 * (1 + update % 2);
    const double grad_scale = update % 4 ? 1.0 : 0.37;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      std::vector<double> grad(expected[i].size());
      for (auto& g : grad) g = normal(random) * std::pow(10.0, update % 5 - 3);
      const auto rounded = test::doubles(grad).to(main);
      for (auto& shard : shards) shard->grads[i].copy_(rounded.view(shard->grads[i].sizes()));
      grad = numbers(rounded);
      const auto& group = groups[shapes[i].size() > 1 ? 0 : 1];
      for (std::size_t e = 0; e < grad.size(); ++e)
        expected[i][e].step(config, update, grad[e] * grad_scale, group.lr, group.weight_decay);
    }
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      auto& buffer = shards[rank]->buffer;
      auto shard = buffer.shard();
      kinds[rank].step(shard, groups, grad_scale);
      CHECK(shard.values.equal(shard.main_params.to(model)));
      // All of the shard's elements against those of the parameters that lie in it.
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        auto whole = zeros({buffer.numel}, at::kDouble);
        buffer.owned(whole).copy_(buffer.main_params);
        const auto found = numbers(buffer.view(whole, i));
        for (std::int64_t e = 0; e < static_cast<std::int64_t>(found.size()); ++e) {
          const auto at = buffer.offsets[i] + e;
          if (at < buffer.begin || at >= buffer.end) continue;
          const auto n = static_cast<std::size_t>(e);
          worst = std::max(worst, std::abs(found[n] - expected[i][n].weight) /
                                      std::max(1.0, std::abs(expected[i][n].weight)));
        }
      }
    }
  }
  return worst;
}

OptimizerConfig config_of(OptimizerKind kind, double momentum = 0.9) {
  OptimizerConfig config;
  config.optimizer = kind;
  config.adam_beta2 = 0.95;
  config.sgd_momentum = momentum;
  return config;
}

}  // namespace

TEST_CASE("100 random steps are those of the definition, whole and in shards") {
  for (const auto& config :
       {config_of(OptimizerKind::adam), config_of(OptimizerKind::sgd), config_of(OptimizerKind::sgd, 0.0)})
    for (const int size : {1, 3, 20}) {
      CAPTURE(size);
      CAPTURE(config.sgd_momentum);
      CHECK(distance(config, at::kDouble, at::kDouble, size) < 1e-13);
      CHECK(distance(config, at::kFloat, at::kFloat, size) < 1e-5);
      if (size == 3) CHECK(distance(config, at::kBFloat16, at::kFloat, size) < 1e-5);
    }
}

TEST_CASE("a constant gradient of 1 moves each weight by lr in every update of AdamW, also after a restart") {
  auto config = config_of(OptimizerKind::adam);
  config.adam_beta2 = 0.999;
  config.adam_eps = 1e-30;
  Params params({{70}}, at::kDouble, at::kDouble);
  auto groups = optimizer::param_groups_of(config);
  groups[1].lr = 0.25;
  auto shard = params.buffer.shard();
  const auto move = [&](optimizer::AdamW& adamw) {
    const auto before = numbers(params.values[0]);
    params.grads[0].fill_(1.0);
    adamw.step(shard, groups, 1.0);
    const auto after = numbers(params.values[0]);
    double worst = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      worst = std::max(worst, std::abs(after[i] - before[i] + 0.25));
    return worst;
  };
  optimizer::AdamW first(params.buffer, config);
  for (int update = 1; update <= 3; ++update) {
    CHECK(move(first) < 1e-14);
    CHECK(first.updates == update);
  }
  optimizer::AdamW resumed(params.buffer, config);
  resumed.exp_avg.copy_(first.exp_avg);
  resumed.exp_avg_sq.copy_(first.exp_avg_sq);
  SUBCASE("with its number of updates") {
    resumed.updates = first.updates;
    CHECK(move(resumed) < 1e-14);
  }
  SUBCASE("the number counts: without it the move is 1.72 lr") {
    CHECK(move(resumed) == doctest::Approx(0.7207902 * 0.25).epsilon(1e-6));
  }
}

TEST_CASE("small updates survive in fp32 main weights, not in bf16") {
  Params params({{64}}, at::kBFloat16, at::kFloat);
  OptimizerConfig config = config_of(OptimizerKind::sgd, 0.0);
  optimizer::AdamW sgd(params.buffer, config);
  auto groups = optimizer::param_groups_of(config);
  groups[1].lr = 1.0;
  auto shard = params.buffer.shard();
  shard.main_params.fill_(1.0);
  params.grads[0].fill_(0.001);
  for (int update = 0; update < 5; ++update) sgd.step(shard, groups, 1.0);
  CHECK(numbers(shard.main_params)[0] == doctest::Approx(0.995).epsilon(1e-6));
  for (int update = 0; update < 5; ++update) sgd.step(shard, groups, 1.0);
  CHECK(numbers(shard.main_params)[0] == doctest::Approx(0.99).epsilon(1e-6));
  CHECK(numbers(params.values[0])[0] == 0.98828125);
  auto rounded = zeros({1}, at::kBFloat16).fill_(1.0);
  for (int update = 0; update < 10; ++update) rounded.sub_(0.001);
  CHECK(rounded.item<float>() == 1.0f);  // what the main weights are for
}
