#include "tests/support/doctest.hpp"

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/scheduler/get_lr_decl.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"

using namespace mgfl::scheduler;
using mgfl::optimizer::Optimizer;
using mgfl::optimizer::ParamGroup;

namespace {

nlohmann::json read_json(const std::string& name) {
  std::ifstream file(std::string(MGFL_TEST_DATA) + "/megatron/" + name);
  REQUIRE(file);
  return nlohmann::json::parse(file);
}

// Warm-up 4, then linearly to 0 at 10, peak 1.
OptimizerParamSchedulerConfig short_schedule() {
  OptimizerParamSchedulerConfig config;
  config.max_lr = 1;
  config.lr_warmup_steps = 4;
  config.lr_decay_steps = 10;
  return config;
}

Optimizer groups(std::size_t count = 1) {
  Optimizer optimizer;
  optimizer.param_groups.resize(count);
  return optimizer;
}

bool equal(double a, double b) { return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b)); }

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const mgfl::UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("learning rates and weight decays are Megatron's, for every group at every position") {
  const auto fixture = read_json("lr_schedules.json");
  for (const auto& s : fixture["schedules"]) {
    CAPTURE(s["name"].get<std::string>());
    OptimizerParamSchedulerConfig config;
    config.init_lr = s["init_lr"];
    config.max_lr = s["max_lr"];
    config.min_lr = s["min_lr"];
    config.lr_warmup_steps = s["lr_warmup_steps"];
    config.lr_decay_steps = s["lr_decay_steps"];
    config.lr_decay_style = lr_decay_style(s["lr_decay_style"].get<std::string>());
    config.start_wd = s["start_wd"];
    config.end_wd = s["end_wd"];
    config.wd_incr_steps = s["wd_incr_steps"];
    config.wd_incr_style = wd_incr_style(s["wd_incr_style"].get<std::string>());
    if (!s["wsd_decay_steps"].is_null()) {
      config.lr_wsd_decay_steps = s["wsd_decay_steps"];
      config.lr_wsd_decay_style = wsd_decay_style(s["lr_wsd_decay_style"].get<std::string>());
    }
    Optimizer optimizer;
    for (const auto& g : s["param_groups"]) {
      ParamGroup group;
      group.wd_mult = g.value("wd_mult", 1.0);
      if (g.contains("max_lr")) group.max_lr = g["max_lr"].get<double>();
      if (g.contains("min_lr")) group.min_lr = g["min_lr"].get<double>();
      optimizer.param_groups.push_back(group);
    }
    OptimizerParamScheduler scheduler(optimizer, config);
    const std::size_t positions = s["lr"][0].size();
    REQUIRE(positions == 51);
    for (std::size_t t = 0; t < positions; ++t) {
      if (t > 0) scheduler.step(s.value("increment", 1));
      for (std::size_t g = 0; g < optimizer.param_groups.size(); ++g) {
        CAPTURE(t);
        CAPTURE(g);
        CHECK(equal(optimizer.param_groups[g].lr, s["lr"][g][t].get<double>()));
        CHECK(equal(optimizer.param_groups[g].weight_decay, s["weight_decay"][g][t].get<double>()));
      }
    }
  }
}

TEST_CASE("a resumed schedule goes on where it stopped") {
  const double expected[] = {0, .25, .5, .75, 1, 5. / 6, 4. / 6, .5, 2. / 6, 1. / 6, 0};
  auto first = groups(2);
  OptimizerParamScheduler original(first, short_schedule());
  for (int t = 1; t <= 6; ++t) {
    original.step(1);
    CHECK(equal(first.param_groups[0].lr, expected[t]));
  }
  const auto saved = original.state();

  for (const int already : {0, 3}) {  // a scheduler that has moved must not add its own position
    auto second = groups(2);
    OptimizerParamScheduler resumed(second, short_schedule());
    resumed.step(already);
    resumed.load_state(saved);
    resumed.load_state(saved);
    CHECK(resumed.num_steps() == 6);
    for (int t = 6; t <= 9; ++t) {
      for (const auto& group : second.param_groups) CHECK(equal(group.lr, expected[t]));
      resumed.step(1);
    }
    CHECK(std::abs(second.param_groups[1].lr) < 1e-15);
  }
}

TEST_CASE("settings that differ from the checkpoint's need a decision") {
  auto optimizer = groups();
  OptimizerParamScheduler original(optimizer, short_schedule());
  original.step(6);
  auto config = short_schedule();
  config.max_lr = 2;
  config.lr_decay_style = LrDecayStyle::cosine;

  OptimizerParamScheduler strict(optimizer, config);
  const auto text = refusal([&] { strict.load_state(original.state()); });
  CHECK(text.find("max_lr is 2 here and 1 in the checkpoint") != std::string::npos);
  CHECK(text.find("--") == std::string::npos);  // C++ has no flags
  try {
    strict.load_state(original.state());
  } catch (const ScheduleMismatch& mismatch) {
    CHECK(mismatch.field == "max_lr");
    CHECK(mismatch.here == "2");
    CHECK(mismatch.saved == "1");
  }
  CHECK(strict.num_steps() == 0);
  CHECK(strict.config().max_lr == 2);

  config.use_checkpoint = true;
  OptimizerParamScheduler theirs(optimizer, config);
  theirs.load_state(original.state());
  CHECK(equal(optimizer.param_groups[0].lr, 4. / 6));
  CHECK(theirs.config().lr_decay_style == LrDecayStyle::linear);

  config.use_checkpoint = false;
  config.override = true;
  OptimizerParamScheduler ours(optimizer, config);
  ours.load_state(original.state());
  CHECK(ours.num_steps() == 6);
  CHECK(equal(optimizer.param_groups[0].lr, 1.5));  // 2 x (cos(pi / 3) + 1) / 2

  config.use_checkpoint = true;
  CHECK(refusal([&] { OptimizerParamScheduler both(optimizer, config); }).find("exclude") !=
        std::string::npos);
}

TEST_CASE("the style of a checkpoint is named in the refusal") {
  auto optimizer = groups();
  OptimizerParamScheduler original(optimizer, short_schedule());
  auto config = short_schedule();
  config.lr_decay_style = LrDecayStyle::inverse_square_root;
  OptimizerParamScheduler strict(optimizer, config);
  CHECK(refusal([&] {
          strict.load_state(original.state());
        }).find("lr_decay_style is inverse-square-root here and linear in the checkpoint") !=
        std::string::npos);
}

TEST_CASE("lengths without warm-up, and lengths that describe no schedule") {
  auto optimizer = groups();
  auto config = short_schedule();
  config.lr_warmup_steps = 0;
  OptimizerParamScheduler scheduler(optimizer, config);
  const double& lr = optimizer.param_groups[0].lr;
  CHECK(lr == 1);
  scheduler.step(5);
  CHECK(equal(lr, .5));
  scheduler.step(5);
  CHECK(lr == 0);
  scheduler.step(1);
  CHECK(lr == 0);
  CHECK_THROWS_AS(scheduler.step(-1), mgfl::UserError);

  using Config = OptimizerParamSchedulerConfig;
  const auto refused = [&](auto change) {
    Config c = short_schedule();
    change(c);
    return refusal([&] { OptimizerParamScheduler s(optimizer, c); });
  };
  CHECK(refused([](Config& c) { c.lr_warmup_steps = 10; }).find("10 steps") != std::string::npos);
  CHECK(refused([](Config& c) { c.lr_warmup_steps = 12; }).find("12") != std::string::npos);
  CHECK(refused([](Config& c) { c.lr_warmup_steps = -1; }) != "");
  CHECK(refused([](Config& c) { c.lr_decay_steps = 0; }) != "");
  CHECK(refused([](Config& c) { c.lr_decay_steps = -5; }) != "");
  CHECK(refused([](Config& c) { c.min_lr = 1.5; }).find("1.5") != std::string::npos);
  CHECK(refused([](Config& c) { c.init_lr = 1.5; }) != "");
  CHECK(refused([](Config& c) { c.max_lr = std::nan(""); }) != "");
  CHECK(refused([](Config& c) { c.lr_decay_style = LrDecayStyle::wsd; }).find("lr_wsd_decay_steps is 0") !=
        std::string::npos);
  CHECK(refused([](Config& c) { c.end_wd = 0.1; }).find("constant") != std::string::npos);
  CHECK(refused([](Config& c) {
          c.end_wd = 0.1;
          c.wd_incr_style = WdIncrStyle::linear;
        }).find("wd_incr_steps is 0") != std::string::npos);

  Optimizer odd = groups();
  odd.param_groups[0].min_lr = 3;
  CHECK(refusal([&] { OptimizerParamScheduler s(odd, short_schedule()); }).find("parameter group") !=
        std::string::npos);
}

TEST_CASE("what the schedule leaves open is the optimizer's") {
  auto optimizer = groups(2);
  optimizer.lr = 1;
  optimizer.min_lr = 0.25;
  optimizer.weight_decay = 0.5;
  optimizer.param_groups[1].max_lr = 2;
  optimizer.param_groups[1].wd_mult = 0;
  OptimizerParamSchedulerConfig open;
  open.lr_warmup_steps = 4;
  open.lr_decay_steps = 10;
  OptimizerParamScheduler scheduler(optimizer, open);
  CHECK(scheduler.config().max_lr == 1.0);
  CHECK(scheduler.config().end_wd == 0.5);
  scheduler.step(4);
  CHECK(optimizer.param_groups[0].lr == 1);
  CHECK(optimizer.param_groups[1].lr == 2);
  CHECK(optimizer.param_groups[0].weight_decay == 0.5);
  CHECK(optimizer.param_groups[1].weight_decay == 0);
  scheduler.step(7);
  CHECK(optimizer.param_groups[0].lr == 0.25);
  CHECK(optimizer.param_groups[1].lr == 0.25);

  open.max_lr = 0;  // given, so it counts
  open.min_lr = 0;
  open.start_wd = open.end_wd = 0;
  OptimizerParamScheduler zero(optimizer, open);
  zero.step(4);
  CHECK(optimizer.param_groups[0].lr == 0);
  CHECK(optimizer.param_groups[0].weight_decay == 0);
  // A saved schedule has nothing open, so that another lr of the optimizer's is noticed.
  OptimizerParamSchedulerConfig again;
  again.lr_warmup_steps = 4;
  again.lr_decay_steps = 10;
  optimizer.lr = 3;
  OptimizerParamScheduler changed(optimizer, again);
  CHECK(refusal([&] { changed.load_state(scheduler.state()); }).find("max_lr is 3 here and 1") !=
        std::string::npos);
  optimizer.min_lr = 4;
  CHECK(refusal([&] { OptimizerParamScheduler s(optimizer, again); }).find("min_lr 4") != std::string::npos);
}

TEST_CASE("no schedule of any style and length gives a rate that is not finite") {
  for (int style = 0; style <= static_cast<int>(LrDecayStyle::warmup_stable_decay); ++style)
    for (const std::int64_t warmup : {0, 1, 2})
      for (const std::int64_t decay : {1, 2, 3, 5, 12})
        for (const std::int64_t wsd : {1, 2, 12}) {
          OptimizerParamSchedulerConfig config;
          config.max_lr = 1;
          config.min_lr = 0.1;
          config.lr_warmup_steps = warmup;
          config.lr_decay_steps = decay;
          config.lr_wsd_decay_steps = wsd;
          config.lr_decay_style = static_cast<LrDecayStyle>(style);
          auto optimizer = groups();
          const auto run = [&] {
            OptimizerParamScheduler scheduler(optimizer, config);
            for (int t = 0; t < 20; ++t, scheduler.step(1)) {
              CHECK(optimizer.param_groups[0].lr >= 0);
              CHECK(optimizer.param_groups[0].lr <= 1);
            }
          };
          CAPTURE(style);
          CAPTURE(warmup);
          CAPTURE(decay);
          const bool none = warmup >= decay || (config.lr_decay_style == LrDecayStyle::wsd && wsd > decay);
          CHECK((refusal(run) != "") == none);
        }
}

TEST_CASE("warmup-stable-decay halves the rate once a tenth of its stable part, from there on") {
  auto config = short_schedule();
  config.lr_decay_style = LrDecayStyle::warmup_stable_decay;
  config.min_lr = 0.01;
  config.lr_warmup_steps = 4;
  config.lr_decay_steps = 26;  // 22 after the warm-up: 20 and 2, counted from 0
  auto optimizer = groups();
  OptimizerParamScheduler scheduler(optimizer, config);
  const double expected[] = {0, .25, .5, .75, 1};
  for (int t = 0; t <= 28; ++t, scheduler.step(1)) {
    CAPTURE(t);
    const double rate = t <= 4 ? expected[t] : t < 20 ? 1 : t <= 26 ? std::pow(.5, (t - 20) / 2.0) : 0.01;
    CHECK(equal(optimizer.param_groups[0].lr, rate));
  }
}

TEST_CASE("the stages of StableLM 2 follow their formula, wherever a run resumes") {
  StableLm2SchedulerConfig stages;
  stages.cosine_max_lr = 1;
  stages.cosine_period_samples = 16;
  stages.cosine_samples = 8;
  stages.alpha = 0.5;
  stages.beta = 1;
  stages.global_batch_size = 4;
  stages.rsqrt_samples = 12;
  auto config = short_schedule();
  config.min_lr = 0.02;
  config.lr_warmup_steps = 2;
  config.lr_decay_steps = 20;
  config.stablelm2_scheduler_config = stages;
  const auto expected = [&](int t, std::int64_t decay_samples) {
    if (t <= 2) return t / 2.0;
    if (t > 20) return 0.02;
    if (t <= 8) return 0.1 + 0.9 * 0.5 * (std::cos(2 * 3.14159265358979323846 * t / 16) + 1);
    if (t <= 12) return 0.5 / std::sqrt(t / 4.0 + 1);
    const double last = 0.5 / std::sqrt(12 / 4.0 + 1);
    if (decay_samples == 0) return last * (1 - (t - 12) / 8.0);
    const double end = std::min<double>(20, 12 + static_cast<double>(decay_samples));
    return t <= end ? 0.02 + (1 - (t - 12) / (end - 12)) * (last - 0.02) : 0.02;
  };
  for (const std::int64_t decay_samples : {0, 4, 100}) {
    config.stablelm2_scheduler_config->decay_samples = decay_samples;
    for (const int increment : {1, 3, 7}) {
      auto optimizer = groups();
      OptimizerParamScheduler scheduler(optimizer, config);
      for (int t = 0; t <= 22; t += increment, scheduler.step(increment)) {
        CAPTURE(t);
        CHECK(equal(optimizer.param_groups[0].lr, expected(t, decay_samples)));
        auto other = groups();
        OptimizerParamScheduler resumed(other, config);
        resumed.load_state(scheduler.state());
        CHECK(other.param_groups[0].lr == optimizer.param_groups[0].lr);
      }
    }
  }
  auto optimizer = groups();
  OptimizerParamScheduler original(optimizer, config);
  config.stablelm2_scheduler_config->alpha = 0.25;
  OptimizerParamScheduler changed(optimizer, config);
  CHECK(refusal([&] {
          changed.load_state(original.state());
        }).find("stablelm2_scheduler_config is {cosine_max_lr 1,") != std::string::npos);
  config.stablelm2_scheduler_config.reset();
  OptimizerParamScheduler without(optimizer, config);
  CHECK(refusal([&] {
          without.load_state(original.state());
        }).find("stablelm2_scheduler_config is not set here and {cosine_max_lr 1,") != std::string::npos);

  const auto refused = [&](auto change) {
    config.stablelm2_scheduler_config = stages;
    change(*config.stablelm2_scheduler_config);
    return refusal([&] { OptimizerParamScheduler s(optimizer, config); });
  };
  CHECK(refused([](auto&) {}) == "");
  CHECK(refused([](auto& c) { c.cosine_period_samples = 0; }).find("cosine_period_samples 0") !=
        std::string::npos);
  CHECK(refused([](auto& c) { c.global_batch_size = 0; }) != "");
  CHECK(refused([](auto& c) { c.cosine_samples = -1; }) != "");
  CHECK(refused([](auto& c) { c.rsqrt_samples = 8; }) != "");
  CHECK(refused([](auto& c) { c.decay_samples = -1; }) != "");
  CHECK(refused([](auto& c) { c.beta = -1; }) != "");
}

TEST_CASE("Megatron's body knows Megatron's styles, and refuses vendor default's") {
  using Original = mgfl::implementation<mgfl::targets::get_lr, mgfl::vendors::original>;
  auto optimizer = groups();
  OptimizerParamScheduler scheduler(optimizer, short_schedule());
  scheduler.step(7);
  CHECK(Original::call(scheduler, optimizer.param_groups[0]) == optimizer.param_groups[0].lr);
  auto config = short_schedule();
  config.lr_decay_style = LrDecayStyle::warmup_stable_decay;
  OptimizerParamScheduler theirs(optimizer, config);
  CHECK(refusal([&] { Original::call(theirs, optimizer.param_groups[0]); }).find("vendor default's") !=
        std::string::npos);
}

TEST_CASE("styles have Megatron's names") {
  for (const char* name :
       {"constant", "linear", "cosine", "inverse-square-root", "WSD", "warmup-stable-decay"})
    CHECK(to_string(lr_decay_style(name)) == name);
  for (const char* name : {"linear", "cosine", "exponential", "minus_sqrt"})
    CHECK(to_string(wsd_decay_style(name)) == name);
  CHECK(refusal([] { lr_decay_style("cos"); }).find("constant, linear, cosine, inverse-square-root, WSD") !=
        std::string::npos);
}
