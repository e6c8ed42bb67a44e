#include "tests/unit/kernels/support.hpp"

#include <algorithm>

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr std::int64_t rows = 6, columns = 23, first_column = 100;
const std::vector<std::int64_t> some_labels{100, 122, 111,
                                            99,  123, -100};  // the last three are not held here

struct Statistics {
  Tensor largest, sum_exp, sum_exp_z, predicted;

  Statistics(const Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first)
      : largest(mgfl::empty(scale.sizes(), scale.scalar_type())),
        sum_exp(mgfl::empty(scale.sizes(), scale.scalar_type())),
        sum_exp_z(mgfl::empty(scale.sizes(), scale.scalar_type())),
        predicted(mgfl::empty(scale.sizes(), scale.scalar_type())) {
    original<targets::vocab_row_statistics>(logits, labels, scale, first, largest, sum_exp, sum_exp_z,
                                            predicted);
  }

  Tensor lse() const { return sum_exp.log().add(largest); }
  /// log sum_exp - E[z - largest].
  Tensor entropy() const { return sum_exp.log().sub(sum_exp_z.div(sum_exp)); }
  Tensor log_prob() const { return predicted.sub(lse()); }
};

Tensor positive_scale(Random& random, at::ScalarType m) { return random.tensor({rows}, m, 0, 0.3).exp(); }

/// Log-probability of the label and entropy, straight from their definitions.
struct Row {
  double log_prob, entropy;
};
Row reference_row(const numbers& z, std::int64_t label) {
  double total = 0;
  for (const double value : z) total += std::exp(value);
  Row row{z[label] - std::log(total), 0};
  for (const double value : z) row.entropy -= std::exp(value) / total * (value - std::log(total));
  return row;
}
}  // namespace

TEST_CASE("vocab_row_statistics in every dtype") {
  Random random(18);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor logits = random.tensor({rows, columns}, dtype.d, 0, 3),
                 scale = positive_scale(random, dtype.m);
    const Statistics got(logits, integers(some_labels), scale, first_column);
    const auto x = values(logits), s = values(scale);
    numbers largest, sum_exp, sum_exp_z, predicted;
    for (std::int64_t r = 0; r < rows; ++r) {
      double most = -1e300, sum = 0, sum_z = 0;
      for (std::int64_t j = 0; j < columns; ++j) most = std::max(most, x[r * columns + j] * s[r]);
      for (std::int64_t j = 0; j < columns; ++j) {
        const double z = x[r * columns + j] * s[r] - most;
        sum += std::exp(z);
        sum_z += std::exp(z) * z;
      }
      const std::int64_t label = some_labels[r] - first_column;
      largest.push_back(most);
      sum_exp.push_back(sum);
      sum_exp_z.push_back(sum_z);
      predicted.push_back(label >= 0 && label < columns ? x[r * columns + label] * s[r] : 0.0);
    }
    const double tolerance = dtype.d == at::kDouble ? 1e-13 : 3e-6;
    CHECK(distance(got.largest, largest) < tolerance);
    CHECK(distance(got.sum_exp, sum_exp) < tolerance);
    CHECK(distance(got.sum_exp_z, sum_exp_z) < tolerance);
    CHECK(distance(got.predicted, predicted) < tolerance);
  }
}

TEST_CASE("log-probability and entropy follow from the statistics") {
  Random random(19);
  const Tensor logits = random.tensor({rows, columns}, at::kDouble, 0, 3),
               scale = positive_scale(random, at::kDouble);
  const std::vector<std::int64_t> labels{0, 22, 11, 5, 6, 7};
  const Statistics got(logits, integers(labels), scale, 0);
  const auto z = values(logits.mul(scale.unsqueeze(1)));
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto expected =
        reference_row(numbers(z.begin() + r * columns, z.begin() + (r + 1) * columns), labels[r]);
    CHECK(got.log_prob()[r].item<double>() == doctest::Approx(expected.log_prob).epsilon(1e-13));
    CHECK(got.entropy()[r].item<double>() == doctest::Approx(expected.entropy).epsilon(1e-13));
  }
  // Equal logits: entropy log(columns), log-probability -log(columns).
  const Statistics uniform(mgfl::zeros({rows, columns}, at::kDouble).add(7.0), integers(labels), scale, 0);
  CHECK(distance(uniform.entropy(), numbers(rows, std::log(columns))) < 1e-14);
  CHECK(distance(uniform.log_prob(), numbers(rows, -std::log(columns))) < 1e-14);
}

TEST_CASE("vocab_rows_backward is the derivative of log-probability and entropy") {
  Random random(20);
  const Tensor logits = random.tensor({rows, columns}, at::kDouble, 0, 2),
               scale = positive_scale(random, at::kDouble);
  const Tensor labels = integers(std::vector<std::int64_t>{0, 22, 11, 5, 6, 7});
  const Tensor d_log_prob = random.tensor({rows}, at::kDouble),
               d_entropy = random.tensor({rows}, at::kDouble);
  for (const bool with_entropy : {false, true}) {
    const Statistics forward(logits, labels, scale, 0);
    Tensor gradient = logits.clone();
    original<targets::vocab_rows_backward>(gradient, labels, scale, 0, forward.lse(), forward.entropy(),
                                           d_log_prob, with_entropy ? d_entropy : Tensor());
    const auto loss = [&] {
      const Statistics now(logits, labels, scale, 0);
      return weighted_sum(now.log_prob(), d_log_prob) +
             (with_entropy ? weighted_sum(now.entropy(), d_entropy) : 0.0);
    };
    CHECK(distance(gradient, numeric_gradient(logits, loss)) < difference_tolerance);
  }
}

TEST_CASE("two column ranges combine to the whole vocabulary") {
  Random random(21);
  const Tensor labels = integers(std::vector<std::int64_t>{0, 22, 11, 9, 10, -100});
  const std::int64_t cut = 10;
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const double tolerance = dtype.d == at::kDouble ? 1e-13 : 3e-6;
    const Tensor logits = random.tensor({rows, columns}, dtype.d, 0, 3),
                 scale = positive_scale(random, dtype.m);
    const Tensor left = logits.narrow(1, 0, cut).contiguous(),
                 right = logits.narrow(1, cut, columns - cut).contiguous();
    const Statistics whole(logits, labels, scale, 0), a(left, labels, scale, 0), b(right, labels, scale, cut);
    const Tensor largest = a.largest.maximum(b.largest);
    Tensor sum_exp = mgfl::zeros({rows}, dtype.m), sum_exp_z = mgfl::zeros({rows}, dtype.m);
    for (const Statistics* part : {&a, &b}) {
      const Tensor shift = part->largest.sub(largest), weight = shift.exp();
      sum_exp.add_(part->sum_exp.mul(weight));
      sum_exp_z.add_(part->sum_exp_z.add(part->sum_exp.mul(shift)).mul(weight));
    }
    CHECK(distance(largest, whole.largest) == 0.0);
    CHECK(distance(sum_exp, whole.sum_exp) < tolerance);
    CHECK(distance(sum_exp_z, whole.sum_exp_z) < tolerance);
    CHECK(distance(a.predicted.add(b.predicted), whole.predicted) == 0.0);

    const Tensor d_log_prob = random.tensor({rows}, dtype.m), d_entropy = random.tensor({rows}, dtype.m);
    const auto backward = [&](const Tensor& from, std::int64_t first) {
      Tensor gradient = from.clone();
      original<targets::vocab_rows_backward>(gradient, labels, scale, first, whole.lse(), whole.entropy(),
                                             d_log_prob, d_entropy);
      return gradient;
    };
    const Tensor gradient = backward(logits, 0);
    CHECK(distance(backward(left, 0), gradient.narrow(1, 0, cut)) < dtype.tolerance);
    CHECK(distance(backward(right, cut), gradient.narrow(1, cut, columns - cut)) < dtype.tolerance);
    // In each dtype the gradient is fp64's, rounded once.
    Tensor wide = logits.to(at::kDouble).clone();
    original<targets::vocab_rows_backward>(wide, labels, scale.to(at::kDouble), 0,
                                           whole.lse().to(at::kDouble), whole.entropy().to(at::kDouble),
                                           d_log_prob.to(at::kDouble), d_entropy.to(at::kDouble));
    CHECK(distance(gradient, wide) < dtype.tolerance);
  }
}

TEST_CASE("columns of minus infinity, and ranges without columns, add nothing") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor labels = integers(std::vector<std::int64_t>{1}), scale = mgfl::zeros({1}, at::kFloat).add(1.0);
  Tensor logits = mgfl::zeros({1, 4}, at::kFloat);
  logits.narrow(1, 2, 2).fill_(-infinity);
  const Statistics two(logits, labels, scale, 0);
  CHECK(two.entropy().item<double>() == doctest::Approx(std::log(2)));
  CHECK(two.log_prob().item<double>() == doctest::Approx(-std::log(2)));
  const Tensor one = mgfl::zeros({1}, at::kFloat).add(1.0);
  Tensor gradient = logits.clone();
  original<targets::vocab_rows_backward>(gradient, labels, scale, 0, two.lse(), two.entropy(), one, one);
  CHECK(distance(gradient, numbers{-0.5, 0.5, 0, 0}) < 1e-6);

  for (const Tensor& nothing : {logits.narrow(1, 2, 2).contiguous(), mgfl::empty({1, 0}, at::kFloat)}) {
    const Statistics none(nothing, labels, scale, 2);
    CHECK(std::isfinite(none.largest.item<float>()));  // so that e^(largest - L) * 0 is 0, never NaN
    CHECK(none.largest.item<float>() < -1e38f);
    CHECK(none.sum_exp.item<float>() == 0.0f);
    CHECK(none.sum_exp_z.item<float>() == 0.0f);
    CHECK(none.predicted.item<float>() == 0.0f);
  }
}
