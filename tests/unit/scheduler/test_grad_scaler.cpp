#include "tests/support/doctest.hpp"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/optimizer/grad_scaler.hpp"

using namespace mgfl::optimizer;

TEST_CASE("the dynamic loss scale is Megatron's, bit for bit") {
  std::ifstream file(std::string(MGFL_TEST_DATA) + "/megatron/loss_scaler.json");
  REQUIRE(file);
  const auto fixture = nlohmann::json::parse(file);
  for (const auto& c : fixture["cases"]) {
    CAPTURE(c["name"].get<std::string>());
    DynamicGradScalerConfig config;
    config.initial_scale = c["initial_scale"];
    config.min_scale = c["min_scale"];
    config.growth_factor = c["growth_factor"];
    config.backoff_factor = c["backoff_factor"];
    config.growth_interval = c["growth_interval"];
    config.hysteresis = c["hysteresis"];
    DynamicGradScaler scaler(config);
    CHECK(scaler.scale() == c["initial_scale"].get<double>());
    for (std::size_t i = 0; i < c["found_inf"].size(); ++i) {
      CAPTURE(i);
      if (i == c["found_inf"].size() / 2) {  // saving and loading in between changes nothing
        DynamicGradScaler other(config);
        other.load_state(scaler.state());
        scaler = other;
      }
      scaler.update(c["found_inf"][i].get<int>() != 0);
      CHECK(scaler.scale() == c["scale"][i].get<double>());
      CHECK(scaler.inv_scale() == c["inv_scale"][i].get<double>());
      CHECK(scaler.state().growth_tracker == c["growth_tracker"][i].get<std::int64_t>());
      CHECK(scaler.state().hysteresis_tracker == c["hysteresis_tracker"][i].get<std::int64_t>());
    }
  }
}

TEST_CASE("the defaults of the dynamic loss scale are Megatron's") {
  DynamicGradScaler scaler;
  CHECK(scaler.scale() == 4294967296.0f);
  scaler.update(true);
  CHECK(scaler.scale() == 4294967296.0f);
  scaler.update(true);
  CHECK(scaler.scale() == 2147483648.0f);
  for (int i = 0; i < 1000; ++i) scaler.update(false);
  CHECK(scaler.scale() == 4294967296.0f);
}

TEST_CASE("a loss scale never becomes infinite") {
  DynamicGradScalerConfig config;
  config.growth_interval = 1;
  DynamicGradScaler scaler(config);
  for (int i = 0; i < 300; ++i) scaler.update(false);
  CHECK(std::isfinite(scaler.scale()));
  CHECK(scaler.inv_scale() > 0);
}

TEST_CASE("a dynamic scale goes on from a dynamic one's state, not below its own minimum") {
  DynamicGradScalerConfig config;
  config.initial_scale = 1024;
  config.min_scale = 16;
  DynamicGradScaler scaler(config);
  scaler.load_state(ConstantGradScaler(1).state());  // of a bf16 run
  CHECK(scaler.scale() == 1024);
  CHECK(scaler.state().hysteresis_tracker == 2);
  scaler.load_state({64, 3, 1});
  CHECK(scaler.scale() == 64);
  CHECK(scaler.state().growth_tracker == 3);
  scaler.load_state({4, 3, 1});
  CHECK(scaler.scale() == 16);
}

TEST_CASE("a constant loss scale stays") {
  ConstantGradScaler scaler(1024);
  scaler.update(true);
  scaler.update(false);
  CHECK(scaler.scale() == 1024);
  CHECK(scaler.inv_scale() == 1.0f / 1024);
  scaler.load_state({8, 0, 0});
  CHECK(scaler.state().scale == 1024);
}

TEST_CASE("scales and factors out of range are refused") {
  for (const double scale : {0.0, -1.0, std::nan(""), 1e39, 1e-45}) {
    CAPTURE(scale);
    CHECK_THROWS_AS(ConstantGradScaler{scale}, mgfl::UserError);
    DynamicGradScalerConfig config;
    config.initial_scale = scale;
    CHECK_THROWS_AS(DynamicGradScaler{config}, mgfl::UserError);
  }
  const auto refused = [](auto change) {
    DynamicGradScalerConfig config;
    change(config);
    CHECK_THROWS_AS(DynamicGradScaler{config}, mgfl::UserError);
  };
  refused([](auto& c) { c.growth_interval = 0; });
  refused([](auto& c) { c.hysteresis = 0; });
  refused([](auto& c) { c.growth_factor = 1; });
  refused([](auto& c) { c.backoff_factor = 1; });
  refused([](auto& c) { c.min_scale = 0; });
  refused([](auto& c) { c.min_scale = 1e20; });
  DynamicGradScaler scaler;
  CHECK_THROWS_AS(scaler.load_state({std::nanf(""), 0, 2}), mgfl::UserError);
  CHECK_THROWS_AS(scaler.load_state({1, -1, 2}), mgfl::UserError);
}
