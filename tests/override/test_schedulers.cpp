#include "tests/support/doctest.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "mgfl/base/error.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"
#include "vendors/default/scheduler/wsd_scheduler.hpp"

namespace {

using Cosine = mgfl::scheduler::original::CosineAnnealingLR;
using Wsd = mgfl::scheduler::WSDScheduler;

mgfl::optimizer::Optimizer two_groups() {
  mgfl::optimizer::Optimizer optimizer;
  optimizer.param_groups.resize(2);
  return optimizer;
}

template <class Scheduler, class... Args>
std::vector<double> rates(int steps, Args... args) {
  auto optimizer = two_groups();
  Scheduler scheduler(optimizer, args...);
  std::vector<double> result;
  for (int i = 0; i < steps; ++i) {
    scheduler.step();
    CHECK(optimizer.param_groups[0].lr == optimizer.param_groups[1].lr);
    CHECK(scheduler.get_lr() == optimizer.param_groups[0].lr);
    result.push_back(scheduler.get_lr());
  }
  CHECK(scheduler.current_step() == steps);
  return result;
}

void check_equal(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(found[i] - expected[i]) < 1e-15);
  }
}

}  // namespace

TEST_CASE("cosine: from min_lr + 1 to min_lr over max_steps") {
  const double half_root = std::sqrt(0.5);
  check_equal(rates<Cosine>(6, 4, 0.1), {1.1, 0.1 + 0.5 + 0.5 * half_root, 0.6, 0.1 + 0.5 - 0.5 * half_root,
                                         0.1, 0.1 + 0.5 - 0.5 * half_root});
  check_equal(rates<Cosine>(2, 1), {1.0, 0.0});
}

TEST_CASE("warmup, stable, decay") {
  check_equal(rates<Wsd>(13, 10, 0.3, 4), {0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 0.5, 0.3, 0.3});
  check_equal(rates<Wsd>(3, 2, 0.0, 0), {1, 1, std::pow(0.5, 0.2 / 0.2)});
  check_equal(rates<Wsd>(2, 20), {0, 0.001});  // warmup_steps defaults to 1000
}

TEST_CASE("the public name is the vendor's class, and is a CosineAnnealingLR") {
  using Public = mgfl::scheduler::CosineAnnealingLR;
  static_assert(std::is_base_of_v<Cosine, Public>);
  static_assert(std::is_base_of_v<Cosine, Wsd>);
  static_assert(mgfl::kind_of<mgfl::targets::CosineAnnealingLR> == mgfl::target_kind::class_);
  auto optimizer = two_groups();
  Public scheduler(optimizer, 10000);
  scheduler.step();
  CHECK(scheduler.current_step() == 1);
  if constexpr (std::is_same_v<mgfl::vendors::preferred, mgfl::vendors::default_>)
    static_assert(std::is_same_v<Public, Wsd>);
}

TEST_CASE("a scheduler resumes where it stood") {
  auto optimizer = two_groups();
  Wsd whole(optimizer, 10, 0.0, 4);
  for (int i = 0; i < 3; ++i) whole.step();
  Wsd resumed(optimizer, 10, 0.0, 4);
  resumed.set_current_step(whole.current_step());
  resumed.step();
  CHECK(resumed.get_lr() == 0.75);
  CHECK_THROWS_AS(resumed.set_current_step(-1), mgfl::UserError);
}

TEST_CASE("bad arguments are the user's errors") {
  auto optimizer = two_groups();
  mgfl::optimizer::Optimizer empty;
  CHECK_THROWS_AS(Cosine(optimizer, 0), mgfl::UserError);
  CHECK_THROWS_AS(Cosine(optimizer, -5), mgfl::UserError);
  CHECK_THROWS_AS(Cosine(optimizer, 10, -0.1), mgfl::UserError);
  CHECK_THROWS_AS(Cosine(optimizer, 10, 1.5), mgfl::UserError);
  CHECK_THROWS_AS(Cosine(optimizer, 10, std::numeric_limits<double>::quiet_NaN()), mgfl::UserError);
  CHECK_THROWS_AS(Cosine(empty, 10), mgfl::UserError);
  CHECK_THROWS_AS(Wsd(optimizer, 0), mgfl::UserError);
  CHECK_THROWS_AS(Wsd(optimizer, 10, 0.0, -1), mgfl::UserError);
}
