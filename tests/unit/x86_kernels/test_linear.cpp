#include <cmath>
#include <limits>

#include "tests/unit/x86_kernels/support.hpp"

using namespace x86_tests;

namespace {

struct Shape {
  std::int64_t tokens, in, out;
};
/// Around a register, a tile, a task and a block of depth; the last four take several passes over the columns
/// (linear) or over the depth of each product.
constexpr std::array<Shape, 9> shapes{{{64, 64, 64},
                                       {65, 97, 79},
                                       {127, 64, 161},
                                       {253, 130, 66},
                                       {66, 577, 112},
                                       {70, 576, 1830},
                                       {70, 640, 1830},
                                       {70, 1830, 640},
                                       {640, 1830, 70}}};

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
Tensor overwritten(at::IntArrayRef shape, at::ScalarType dtype) {
  return mgfl::zeros(shape, dtype).fill_(nan);
}

/// kernel(...) on the inputs; the original sums in fp64, and its result is rounded.
template <class Target, class Kernel>
Tensor product(Kernel kernel, Tensor a, Tensor b, const Tensor& bias, Tensor to) {
  if (kernel == original<Target>) {
    a = a.to(at::kDouble);
    b = b.to(at::kDouble);
    to = to.to(at::kDouble);
  }
  if constexpr (std::is_same_v<Target, targets::linear>) {
    kernel(a, b, bias.defined() ? bias.to(a.scalar_type()) : bias, to);
  } else {
    kernel(a, b, to);
  }
  return to.to(at::kFloat);
}

/// Random numbers whose sums over `depth` products with unit ones are about 1.
Tensor summed(Random& random, const std::vector<std::int64_t>& shape, std::int64_t depth) {
  return random.tensor(shape, at::kFloat, 0, 1 / std::sqrt(static_cast<double>(depth)));
}

template <class Body>
void for_each_shape(Body body) {
  for (const auto& [tokens, in, out] : shapes) {
    CAPTURE(tokens);
    CAPTURE(in);
    CAPTURE(out);
    body(tokens, in, out);
  }
}

}  // namespace

TEST_CASE("x86 linear in fp32") {
  for_each_shape([](std::int64_t tokens, std::int64_t in, std::int64_t out) {
    Random random(50);
    const Tensor x = summed(random, {tokens, in}, in), w = random.tensor({out, in}, at::kFloat);
    for (const Tensor& bias : {random.tensor({out}, at::kFloat), Tensor()}) {
      CAPTURE(bias.defined());
      agrees<targets::linear>(
          [&](auto kernel) {
            return Tensors{
                product<targets::linear>(kernel, x, w, bias, overwritten({tokens, out}, at::kFloat))};
          },
          1e-5, 3);
    }
  });
}

TEST_CASE("x86 linear_input_grad in fp32") {
  for_each_shape([](std::int64_t tokens, std::int64_t in, std::int64_t out) {
    Random random(51);
    const Tensor dy = summed(random, {tokens, out}, out), w = random.tensor({out, in}, at::kFloat);
    agrees<targets::linear_input_grad>(
        [&](auto kernel) {
          return Tensors{product<targets::linear_input_grad>(kernel, dy, w, Tensor(),
                                                             overwritten({tokens, in}, at::kFloat))};
        },
        1e-5, 3);
  });
}

TEST_CASE("x86 linear_weight_grad in fp32 adds to the gradient") {
  for_each_shape([](std::int64_t tokens, std::int64_t in, std::int64_t out) {
    Random random(52);
    const Tensor dy = summed(random, {tokens, out}, tokens), x = random.tensor({tokens, in}, at::kFloat);
    const Tensor grad = random.tensor({out, in}, at::kFloat);
    agrees<targets::linear_weight_grad>(
        [&](auto kernel) {
          return Tensors{product<targets::linear_weight_grad>(kernel, dy, x, Tensor(), grad.clone())};
        },
        1e-5, 3);
  });
}

TEST_CASE("x86 products that are narrow, strided or of another dtype are the original's") {
  const auto same = [](const Tensor& x, const Tensor& w) {
    Tensor got = mgfl::zeros({x.size(0), w.size(0)}, x.scalar_type()), expected = got.clone();
    x86<targets::linear>(x, w, Tensor(), got);
    original<targets::linear>(x, w, Tensor(), expected);
    CHECK(same_bits(got, expected));
  };
  Random random(53);
  for (const auto& [tokens, in, out] :
       {Shape{63, 80, 80}, Shape{80, 63, 80}, Shape{80, 80, 63}, Shape{1, 1, 1}, Shape{0, 80, 80}})
    same(random.tensor({tokens, in}, at::kFloat), random.tensor({out, in}, at::kFloat));
  const Tensor w = random.tensor({80, 80}, at::kFloat);
  same(random.tensor({80, 160}, at::kFloat).narrow(1, 40, 80), w);
  same(random.tensor({80, 80}, at::kFloat).t(), w);
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf})
    same(random.tensor({80, 80}, dtype), w.to(dtype));
}
