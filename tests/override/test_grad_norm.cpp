#include "tests/support/doctest.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "tests/override/ranks.hpp"
#include "vendors/default/optimizer/clip_grads.hpp"
#include "vendors/musa/optimizer/clip_grads.hpp"

using mgfl::Tensor;
using mgfl_test::Ranks;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class V>
double norm(const std::vector<Tensor>& grads, double p, mgfl::parallel::GroupList<Ranks> groups) {
  return mgfl::implementation<mgfl::targets::get_grad_norm_fp32, V>::template call<Ranks>(grads, p, groups);
}
double original(const std::vector<Tensor>& grads, double p = 2.0, Ranks group = {}) {
  return norm<mgfl::vendors::original>(grads, p, {&group});
}

/// Gaussian values of very different sizes; the same for every dtype up to its rounding.
Tensor random_tensor(std::int64_t count, at::ScalarType dtype, unsigned seed, double scale) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> gaussian(0.0, scale);
  Tensor wide = mgfl::empty({count}, at::kDouble);
  for (std::int64_t i = 0; i < count; ++i) wide.mutable_data_ptr<double>()[i] = gaussian(engine);
  return wide.to(dtype);
}

/// Independent of the library: one long-double loop over the rounded values.
double reference(const std::vector<Tensor>& grads, double p) {
  long double total = 0;
  for (const Tensor& grad : grads) {
    const Tensor wide = grad.to(at::kDouble).contiguous();
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
      const long double g = std::fabs(wide.const_data_ptr<double>()[i]);
      if (std::isinf(p))
        total = std::max(total, g);
      else
        total += std::pow(g, static_cast<long double>(p));
    }
  }
  return static_cast<double>(std::isinf(p) ? total : std::pow(total, 1.0L / static_cast<long double>(p)));
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE("the norm agrees with long double, for every p and dtype") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    for (const double p : {2.0, 1.0, 1.5, 3.0, infinity}) {
      const std::vector<Tensor> grads = {random_tensor(200003, dtype, 1, 1e-3),
                                         random_tensor(17, dtype, 2, 50.0), mgfl::empty({0, 4}, dtype),
                                         random_tensor(65536, dtype, 3, 1.0)};
      CAPTURE(p);
      CHECK(original(grads, p) == doctest::Approx(reference(grads, p)).epsilon(1e-12));
    }
}

TEST_CASE("small numbers by hand") {
  Tensor a = mgfl::zeros({2}, at::kFloat);
  a.mutable_data_ptr<float>()[0] = 3;
  a.mutable_data_ptr<float>()[1] = -4;
  CHECK(original({a}) == 5.0);
  CHECK(original({a}, 1.0) == 7.0);
  CHECK(original({a}, infinity) == 4.0);
  CHECK(original({a, a}) == doctest::Approx(std::sqrt(50.0)).epsilon(1e-15));
  CHECK(original({}) == 0.0);
  CHECK(original({}, infinity) == 0.0);
  CHECK(original({mgfl::empty({0}, at::kFloat)}) == 0.0);
  CHECK(original({a.as_strided({1}, {2})}) == 3.0);  // a view
  CHECK(original({mgfl::zeros({3, 2}, at::kFloat).add(1).t()}) == doctest::Approx(std::sqrt(6.0)));
}

TEST_CASE("the bits do not depend on the number of threads") {
  const int before = mgfl::num_threads();
  for (const double p : {2.0, 1.5, infinity}) {
    const std::vector<Tensor> grads = {random_tensor(700001, at::kFloat, 4, 1.0),
                                       random_tensor(131072, at::kBFloat16, 5, 1.0)};
    mgfl::set_num_threads(1);
    const double one = original(grads, p);
    for (const int threads : {2, 3, 7}) {
      mgfl::set_num_threads(threads);
      CHECK(same_bits(original(grads, p), one));
    }
  }
  mgfl::set_num_threads(before);
}

TEST_CASE("NaN and infinity anywhere give a norm that is not finite") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const double bad : {not_a_number, infinity, -infinity})
      for (const std::int64_t position : {0, 16, 99998, 100000})
        for (const double p : {2.0, 1.0, 1.5, infinity}) {
          Tensor grad = random_tensor(100001, at::kDouble, 6, 1.0);
          grad.mutable_data_ptr<double>()[position] = bad;
          CHECK(!std::isfinite(original({random_tensor(5, dtype, 7, 1.0), grad.to(dtype)}, p, Ranks{1e9})));
        }
}

TEST_CASE("the group's other ranks count: sums for finite p, the maximum for infinity") {
  Tensor a = mgfl::zeros({4}, at::kDouble).add(2.0);
  Ranks group{9.0};
  CHECK(norm<mgfl::vendors::original>({a}, 2.0, {&group}) == 5.0);
  CHECK(group.calls == 1);
  CHECK(group.last == mgfl::ReduceOp::sum);
  CHECK(norm<mgfl::vendors::original>({a}, infinity, {&group}) == 9.0);
  CHECK(group.last == mgfl::ReduceOp::max);
  CHECK(mgfl::optimizer::get_grad_norm_fp32(a, 2.0, group) == 5.0);
}

TEST_CASE("the original takes one group, default and musa reduce over each of a list") {
  Tensor a = mgfl::zeros({4}, at::kDouble).add(2.0);
  Ranks inner{9.0}, outer{75.0};
  try {
    norm<mgfl::vendors::original>({a}, 2.0, {&inner, &outer});
    FAIL("two groups must be refused");
  } catch (const mgfl::UserError& error) {
    const std::string text = error.what();
    CHECK(text.find("takes one group and was given 2") != std::string::npos);
    CHECK(text.find("vendor 'default' takes a list") != std::string::npos);
  }
  CHECK(inner.calls == 0);
  CHECK(norm<mgfl::vendors::original>({a}, 2.0, {}) == 4.0);
  CHECK(norm<mgfl::vendors::default_>({a}, 2.0, {&inner, &outer}) == 10.0);
  CHECK(norm<mgfl::vendors::default_>({a}, infinity, {&inner, &outer}) == 75.0);
  CHECK(norm<mgfl::vendors::default_>({a}, 2.0, {}) == 4.0);
  CHECK(norm<mgfl::vendors::musa>({a}, 2.0, {&inner, &outer}) == 10.0);
  CHECK(inner.calls == 3);
  CHECK(outer.calls == 3);
}

TEST_CASE("bad arguments are the user's errors") {
  const Tensor a = mgfl::zeros({2}, at::kFloat);
  for (const double p : {0.0, -1.0, -infinity, not_a_number})
    CHECK_THROWS_AS(original({a}, p), mgfl::UserError);
  CHECK_THROWS_AS(original({}, 0.0), mgfl::UserError);
  CHECK_THROWS_AS(original({a, Tensor()}), mgfl::UserError);
  CHECK_THROWS_AS(original({mgfl::zeros({2}, at::kLong)}), mgfl::UserError);
}

TEST_CASE("dispatch is the address of the active body") {
  using T = mgfl::targets::get_grad_norm_fp32;
  static_assert(mgfl::dispatch_family<T, Ranks> ==
                &mgfl::implementation<T, mgfl::active_vendor<T>>::template call<Ranks>);
  CHECK(mgfl::is_family<T>);
}
