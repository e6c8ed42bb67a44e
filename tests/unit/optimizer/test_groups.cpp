// Which parameters decay, and whose rates they follow: whole buffers and flat shards.
#include <cmath>

#include "policies/optimizer/local.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"
#include "tests/support/params.hpp"

using namespace mgfl;
using optimizer::OptimizerConfig;
using test::numbers;
using test::Params;

namespace {

const std::vector<std::string> names{"embedding.word_embeddings.weight",
                                     "decoder.layers.0.input_layernorm.weight",
                                     "decoder.layers.0.self_attention.linear_qkv.weight",
                                     "decoder.layers.0.self_attention.linear_qkv.bias",
                                     "decoder.layers.0.self_attention.q_layernorm.weight",
                                     "decoder.layers.0.self_attention.k_layernorm.weight",
                                     "decoder.layers.1.mlp.linear_fc1.weight",
                                     "decoder.final_layernorm.weight",
                                     "output_layer.weight"};
const Params::Shapes shapes{{10, 9}, {9}, {30, 9}, {30}, {3}, {3}, {20, 9}, {9}, {10, 9}};

/// Every weight after one AdamW step from 1 with zero gradients, all shards of `size` together, by parameter.
/// Each group has lr 0.1, or what `rates` makes of it, and the weight decay 0.5 x wd_mult.
std::vector<double> after_decay(const OptimizerConfig& config, int size) {
  std::vector<double> found(shapes.size(), std::nan(""));
  for (int rank = 0; rank < size; ++rank) {
    Params params(shapes, at::kDouble, at::kDouble, std::pair(rank, size), names);
    params.buffer.values.fill_(1.0);
    optimizer::AdamW adamw(params.buffer, config);
    optimizer::Optimizer groups{optimizer::param_groups_of(config)};
    scheduler::OptimizerParamScheduler schedule(groups, test::constant_schedule(0.1, 0.5));
    auto shard = params.buffer.shard();
    adamw.step(shard, groups.param_groups, 1.0);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto own = numbers(params.buffer.owned(params.buffer.values, i));
      for (const double value : own) {
        if (std::isnan(found[i])) found[i] = value;
        CHECK(value == found[i]);  // all of a parameter alike
      }
    }
  }
  return found;
}

void check_near(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(names[i]);
    CHECK(std::abs(found[i] - expected[i]) < 1e-15);
  }
}

}  // namespace

TEST_CASE("matrices and embeddings decay, norms and biases do not, in flat shards too") {
  for (const int size : {1, 2, 5}) {
    CAPTURE(size);
    OptimizerConfig config;
    check_near(after_decay(config, size), {.95, 1, .95, 1, 1, 1, .95, 1, .95});
    config.apply_wd_to_qk_layernorm = true;
    check_near(after_decay(config, size), {.95, 1, .95, 1, .95, .95, .95, 1, .95});
  }
}

TEST_CASE("decoupled_lr is the rate of embedding and output layer, other overrides go by name") {
  for (const int size : {1, 3}) {
    OptimizerConfig config;
    config.decoupled_lr = 0.02;
    check_near(after_decay(config, size), {.99, 1, .95, 1, 1, 1, .95, 1, .99});
    config.overrides = {{"*.linear_qkv.*", 0.2, {}, {}}, {"decoder.layers.1.*", {}, {}, 0.5}};
    check_near(after_decay(config, size), {.99, 1, .9, 1, 1, 1, .975, 1, .99});
    config.overrides.push_back({"*norm.weight", {}, {}, 1.0});
    check_near(after_decay(config, size), {.99, .95, .9, 1, .95, .95, .975, .95, .99});
    config.overrides.push_back({"output_layer.weight", {}, {}, {}});  // the last one counts: lr 0.1 again
    check_near(after_decay(config, size), {.99, .95, .9, 1, .95, .95, .975, .95, .95});
  }
}

TEST_CASE("an override of no parameter is refused with its name") {
  Params params(shapes, at::kDouble, at::kDouble, std::nullopt, names);
  OptimizerConfig config;
  config.overrides = {{"*.linear_qkv.*", 0.2, {}, {}}, {"decoder.layer.1.*", {}, {}, 0.5}};
  const auto text = test::error_of([&] { optimizer::check_overrides_fit(params.buffer.params, config); });
  CAPTURE(text);
  CHECK(text.find("\"decoder.layer.1.*\" is the name of no parameter") != std::string::npos);
}

TEST_CASE("groups are the same whatever parameters a rank holds, and follow their own rates") {
  OptimizerConfig config;
  CHECK(optimizer::param_groups_of(config).size() == 2);
  config.decoupled_lr = 4.0;
  config.decoupled_min_lr = 2.0;
  const auto groups = optimizer::param_groups_of(config);
  REQUIRE(groups.size() == 4);
  CHECK(groups[0].max_lr == std::nullopt);
  CHECK(groups[2].max_lr == 4.0);
  CHECK(groups[2].min_lr == 2.0);
  CHECK(groups[2].wd_mult == 1.0);
  CHECK(groups[3].wd_mult == 0.0);
  optimizer::Optimizer optimizer{groups};
  scheduler::OptimizerParamSchedulerConfig schedule;
  schedule.max_lr = 1.0;
  schedule.lr_warmup_steps = 2;
  schedule.lr_decay_steps = 4;
  scheduler::OptimizerParamScheduler scheduler(optimizer, schedule);
  const double plain[] = {0, .5, 1, .5, 0}, decoupled[] = {0, 2, 4, 3, 2};
  for (int t = 0; t <= 4; ++t, scheduler.step(1)) {
    CHECK(optimizer.param_groups[1].lr == plain[t]);
    CHECK(optimizer.param_groups[2].lr == decoupled[t]);
  }
  schedule.init_lr = 0.5;
  optimizer.param_groups[2].max_lr = 0.25;
  optimizer.param_groups[2].min_lr.reset();
  const auto text = test::error_of([&] { scheduler::OptimizerParamScheduler refused(optimizer, schedule); });
  CHECK(text.find("starts at a learning rate of 0.5, above the max_lr 0.25 of a parameter group") !=
        std::string::npos);
  schedule.lr_warmup_steps = 0;  // init_lr is never used
  CHECK_NOTHROW(scheduler::OptimizerParamScheduler(optimizer, schedule));
}

TEST_CASE("configs that no optimizer can work with are refused, with field and value") {
  const auto refusal = [](auto change) {
    OptimizerConfig config;
    change(config);
    return test::error_of([&] { optimizer::check_config(config); });
  };
  const auto says = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(refusal([](auto&) {}) == "(no error)");
  says(refusal([](auto& c) { c.adam_beta1 = 1; }), "adam_beta1 is 1");
  says(refusal([](auto& c) { c.adam_beta2 = -0.5; }), "adam_beta2 is -0.5");
  says(refusal([](auto& c) { c.adam_eps = std::nan(""); }), "adam_eps is nan");
  says(refusal([](auto& c) { c.sgd_momentum = 1; }), "sgd_momentum is 1");
  says(refusal([](auto& c) { c.clip_grad = std::nan(""); }), "clip_grad is nan");
  says(refusal([](auto& c) { c.grad_norm_type = 0.5; }), "grad_norm_type is 0.5");
  says(refusal([](auto& c) { c.grad_norm_type = 17; }), "grad_norm_type is 17");
  CHECK(refusal([](auto& c) { c.grad_norm_type = INFINITY; }) == "(no error)");
  says(refusal([](auto& c) {
         c.overrides = {{"a.*", {}, {}, std::nan("")}};
       }),
       "\"a.*\" has wd_mult nan, max_lr unset and min_lr unset");
  says(refusal([](auto& c) { c.overrides = {{"a.*", -1.0, {}, {}}}; }), "max_lr -1");
  says(refusal([](auto& c) { c.overrides = {{"a.*", {}, INFINITY, {}}}; }), "min_lr inf");
  says(refusal([](auto& c) { c.grad_norm_skip_threshold = 0; }), "grad_norm_skip_threshold is 0");
  says(refusal([](auto& c) { c.max_skipped_steps = -1; }), "max_skipped_steps is -1");
  says(refusal([](auto& c) { c.decoupled_min_lr = 1e-5; }), "decoupled_min_lr");
}
