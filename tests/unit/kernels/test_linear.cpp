#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr std::int64_t tokens = 7, in = 33, out = 12;

/// Plain a b of row-major matrices; `at` reads an element by (row, column).
template <class A, class B>
numbers product(std::int64_t rows, std::int64_t inner, std::int64_t columns, A a, B b) {
  numbers c(rows * columns);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t k = 0; k < inner; ++k) c[i * columns + j] += a(i, k) * b(k, j);
  return c;
}
}  // namespace

TEST_CASE("linear and its gradients in every dtype") {
  Random random(1);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor x = random.tensor({tokens, in}, dtype.d), w = random.tensor({out, in}, dtype.d, 0, 0.3);
    const Tensor bias = random.tensor({out}, dtype.d), dy = random.tensor({tokens, out}, dtype.d);
    const auto xs = values(x), ws = values(w), bs = values(bias), dys = values(dy);

    auto expected = product(
        tokens, in, out, [&](auto i, auto k) { return xs[i * in + k]; },
        [&](auto k, auto j) { return ws[j * in + k]; });
    Tensor y = mgfl::empty({tokens, out}, dtype.d);
    original<targets::linear>(x, w, Tensor(), y);
    CHECK(distance(y, expected) < dtype.tolerance);
    for (std::int64_t i = 0; i < tokens * out; ++i) expected[i] += bs[i % out];
    original<targets::linear>(x, w, bias, y);
    CHECK(distance(y, expected) < dtype.tolerance);

    Tensor dx = mgfl::empty({tokens, in}, dtype.d);
    original<targets::linear_input_grad>(dy, w, dx);
    CHECK(distance(dx, product(
                           tokens, out, in, [&](auto i, auto k) { return dys[i * out + k]; },
                           [&](auto k, auto j) { return ws[k * in + j]; })) < dtype.tolerance);

    const Tensor start = random.tensor({out, in}, dtype.m), bias_start = random.tensor({out}, dtype.m);
    auto weight_grad = product(
        out, tokens, in, [&](auto i, auto k) { return dys[k * out + i]; },
        [&](auto k, auto j) { return xs[k * in + j]; });
    const auto starts = values(start);
    for (std::size_t i = 0; i < weight_grad.size(); ++i) weight_grad[i] += starts[i];
    Tensor main_grad = start.clone();
    original<targets::linear_weight_grad>(dy, x, main_grad);
    // bf16 may round each micro-batch's share once; fp16 goes through fp32, so that only fp32's error is
    // left.
    const double weight_tolerance = dtype.d == at::kHalf ? 3e-6 : 3 * dtype.tolerance;
    CHECK(distance(main_grad, weight_grad) < weight_tolerance);

    auto bias_grad = values(bias_start);
    for (std::int64_t i = 0; i < tokens * out; ++i) bias_grad[i % out] += dys[i];
    Tensor main_bias_grad = bias_start.clone();
    original<targets::bias_grad>(dy, main_bias_grad);
    CHECK(distance(main_bias_grad, bias_grad) < (dtype.d == at::kDouble ? 1e-13 : 3e-6));
  }
}

TEST_CASE("16-bit linear adds its bias before it rounds") {
  // 256 + 1 + 1 in bf16: 257 rounds to 256 (ties to even), and so would 256 + 1; the sum in fp32 is 258.
  for (const auto& [d, large] : {std::pair{at::kBFloat16, 256.0}, std::pair{at::kHalf, 2048.0}}) {
    const Tensor x = mgfl::zeros({1, 2}, d).add(1.0), bias = mgfl::zeros({1}, d).add(1.0);
    Tensor w = mgfl::zeros({1, 2}, d).add(1.0), y = mgfl::empty({1, 1}, d);
    w[0][0].fill_(large);
    original<targets::linear>(x, w, bias, y);
    CHECK(y.item<double>() == large + 2);
  }
}

TEST_CASE("linear gradients of no tokens change nothing") {
  for (const auto& dtype : dtype_cases) {
    const Tensor x = mgfl::empty({0, in}, dtype.d), dy = mgfl::empty({0, out}, dtype.d);
    Tensor main_grad = mgfl::zeros({out, in}, dtype.m).add(2.0),
           bias_grad = mgfl::zeros({out}, dtype.m).add(2.0);
    original<targets::linear_weight_grad>(dy, x, main_grad);
    original<targets::bias_grad>(dy, bias_grad);
    CHECK(main_grad.eq(2.0).all().item<bool>());
    CHECK(bias_grad.eq(2.0).all().item<bool>());
  }
}
