#include "tests/support/doctest.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "tests/override/ranks.hpp"
#include "tests/override/scaled_grads.hpp"
#include "vendors/default/optimizer/unscale_main_grads.hpp"

using mgfl::Tensor;
using mgfl_test::Ranks;
using mgfl_test::ScaledGrads;
using mgfl_test::unscale;

namespace {

Tensor ramp(std::int64_t count, at::ScalarType dtype) {
  Tensor wide = mgfl::empty({count}, at::kDouble);
  for (std::int64_t i = 0; i < count; ++i) wide.mutable_data_ptr<double>()[i] = static_cast<double>(i % 128);
  return wide.to(dtype);
}

}  // namespace

TEST_CASE("the method dispatches to the active body, with self") {
  using T = mgfl::targets::unscale_main_grads;
  static_assert(mgfl::kind_of<T> == mgfl::target_kind::method);
  static_assert(mgfl::dispatch_family<T, ScaledGrads<Ranks>> ==
                &mgfl::implementation<T, mgfl::active_vendor<T>>::template call<ScaledGrads<Ranks>>);
  Ranks group;
  ScaledGrads<Ranks> optimizer({ramp(5, at::kFloat)}, 4.0, {&group});
  CHECK(!optimizer._unscale_main_grads_and_check_for_nan());
  CHECK(optimizer._collect_main_grad_data_for_unscaling()[0][4].item<float>() == 1.0f);
  CHECK(group.calls == 1);
}

TEST_CASE("gradients are multiplied by 1 / loss scale in place, in every dtype") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    Ranks group;
    const Tensor large = ramp(100003, dtype), small = ramp(3, dtype);
    ScaledGrads<Ranks> optimizer({large, small}, 1024.0, {&group});  // a power of two: exact in every dtype
    CHECK(!unscale<mgfl::vendors::original>(optimizer));
    for (const std::int64_t i : {0, 1, 127, 128, 100002})
      CHECK(large[i].item<double>() == static_cast<double>(i % 128) / 1024.0);
    CHECK(small[2].item<double>() == 2.0 / 1024.0);
  }
}

TEST_CASE("NaN or infinity on any rank is found") {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
    for (const std::int64_t position : {0, 99999}) {
      Ranks group;
      Tensor grad = ramp(100000, at::kFloat);
      grad.mutable_data_ptr<float>()[position] = static_cast<float>(bad);
      ScaledGrads<Ranks> optimizer({ramp(4, at::kFloat), grad}, 2.0, {&group});
      CHECK(unscale<mgfl::vendors::original>(optimizer));
      CHECK(unscale<mgfl::vendors::default_>(optimizer));
    }
  Ranks other{1.0};  // another rank found one
  ScaledGrads<Ranks> healthy({ramp(4, at::kFloat)}, 2.0, {&other});
  CHECK(unscale<mgfl::vendors::original>(healthy));
  ScaledGrads<Ranks> stub({}, 2.0, {&other});
  CHECK(unscale<mgfl::vendors::original>(stub));
  CHECK(other.last == mgfl::ReduceOp::max);
}

TEST_CASE("the original takes one group, default a list") {
  Ranks inner, outer{1.0};
  ScaledGrads<Ranks> optimizer({ramp(4, at::kFloat)}, 2.0, {&inner, &outer});
  CHECK_THROWS_AS(unscale<mgfl::vendors::original>(optimizer), mgfl::UserError);
  CHECK(unscale<mgfl::vendors::default_>(optimizer));
  CHECK(inner.calls == 1);
  CHECK(outer.calls == 1);
}

TEST_CASE("a loss scale of zero is refused") {
  Ranks group;
  ScaledGrads<Ranks> optimizer({ramp(4, at::kFloat)}, 0.0, {&group});
  CHECK_THROWS_AS(unscale<mgfl::vendors::original>(optimizer), mgfl::RunError);
}
