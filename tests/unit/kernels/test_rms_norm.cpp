#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr std::int64_t tokens = 5, hidden = 19;
constexpr double eps = 1e-2;  // large enough to matter

struct Normed {
  numbers y, rstd;
};

Normed reference(const numbers& x, const numbers& w) {
  Normed result;
  for (std::int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (std::int64_t j = 0; j < hidden; ++j) squares += x[t * hidden + j] * x[t * hidden + j];
    const double rstd = 1 / std::sqrt(squares / hidden + eps);
    result.rstd.push_back(rstd);
    for (std::int64_t j = 0; j < hidden; ++j) result.y.push_back(x[t * hidden + j] * rstd * w[j]);
  }
  return result;
}

struct Outputs {
  Tensor sum, y, rstd;
  explicit Outputs(const DtypeCase& dtype)
      : sum(mgfl::zeros({tokens, hidden}, dtype.d)),
        y(mgfl::zeros({tokens, hidden}, dtype.d)),
        rstd(mgfl::zeros({tokens}, dtype.m)) {}
};
}  // namespace

TEST_CASE("rms_norm in every dtype, with and without residual") {
  Random random(2);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor x = random.tensor({tokens, hidden}, dtype.d),
                 residual = random.tensor({tokens, hidden}, dtype.d);
    const Tensor w = random.tensor({hidden}, dtype.d, 1, 0.2);
    const double exact = dtype.d == at::kDouble ? 1e-13 : 3e-6;

    Outputs plain(dtype);
    original<targets::rms_norm>(x, Tensor(), w, eps, plain.sum, plain.y, plain.rstd);
    const auto expected = reference(values(x), values(w));
    CHECK(distance(plain.y, expected.y) < dtype.tolerance);
    CHECK(distance(plain.rstd, expected.rstd) < exact);
    CHECK(plain.sum.eq(0).all().item<bool>());

    Outputs added(dtype);
    original<targets::rms_norm>(x, residual, w, eps, added.sum, added.y, added.rstd);
    auto sum = values(x);
    const auto residuals = values(residual);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += residuals[i];
    CHECK(distance(added.sum, sum) < dtype.tolerance);
    const auto expected_added = reference(values(added.sum), values(w));  // of the rounded sum
    CHECK(distance(added.y, expected_added.y) < dtype.tolerance);
    CHECK(distance(added.rstd, expected_added.rstd) < exact);

    Outputs aliased(dtype);
    aliased.sum = x.clone();
    original<targets::rms_norm>(aliased.sum, residual, w, eps, aliased.sum, aliased.y, aliased.rstd);
    CHECK(same_bits(aliased.sum, added.sum));
    CHECK(same_bits(aliased.y, added.y));
  }
}

TEST_CASE("rms_norm_backward is the derivative of rms_norm") {
  Random random(3);
  const Tensor x = random.tensor({tokens, hidden}, at::kDouble),
               w = random.tensor({hidden}, at::kDouble, 1, 0.2);
  const Tensor dy = random.tensor({tokens, hidden}, at::kDouble);
  Outputs o(dtype_cases[0]);
  const auto loss = [&] {
    original<targets::rms_norm>(x, Tensor(), w, eps, o.sum, o.y, o.rstd);
    return weighted_sum(o.y, dy);
  };
  loss();
  Tensor dx = mgfl::empty({tokens, hidden}, at::kDouble),
         w_grad = mgfl::zeros({hidden}, at::kDouble).add(0.5);
  original<targets::rms_norm_backward>(dy, x, w, o.rstd, Tensor(), dx, w_grad);
  CHECK(distance(dx, numeric_gradient(x, loss)) < difference_tolerance);
  CHECK(distance(w_grad.sub(0.5), numeric_gradient(w, loss)) < difference_tolerance);

  // The residual's gradient is added; dx may be the tensor of either gradient.
  const Tensor residual_grad = random.tensor({tokens, hidden}, at::kDouble);
  const Tensor expected = dx.add(residual_grad);
  Tensor on_dy = dy.clone(), on_residual = residual_grad.clone();
  original<targets::rms_norm_backward>(on_dy, x, w, o.rstd, residual_grad, on_dy, w_grad);
  original<targets::rms_norm_backward>(dy, x, w, o.rstd, on_residual, on_residual, w_grad);
  CHECK(distance(on_dy, expected) < 1e-14);
  CHECK(distance(on_residual, expected) < 1e-14);
}

TEST_CASE("rms_norm_backward in every dtype") {
  Random random(4);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor x = random.tensor({tokens, hidden}, dtype.d), dy = random.tensor({tokens, hidden}, dtype.d);
    const Tensor w = random.tensor({hidden}, dtype.d, 1, 0.2),
                 residual_grad = random.tensor({tokens, hidden}, dtype.d);
    const Tensor rstd = x.to(at::kDouble).square().mean(-1).add(eps).rsqrt().to(dtype.m);
    const auto run = [&](const DtypeCase& as) {
      std::array<Tensor, 2> grads{mgfl::empty({tokens, hidden}, as.d), mgfl::zeros({hidden}, as.m)};
      original<targets::rms_norm_backward>(dy.to(as.d), x.to(as.d), w.to(as.d), rstd.to(as.m),
                                           residual_grad.to(as.d), grads[0], grads[1]);
      return grads;
    };
    const auto got = run(dtype), expected = run(dtype_cases[0]);
    CHECK(distance(got[0], expected[0]) < dtype.tolerance);
    CHECK(distance(got[1], expected[1]) < 3e-6);
  }
}
