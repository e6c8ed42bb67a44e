#include <numeric>

#include "tests/unit/x86_kernels/support.hpp"

using namespace x86_tests;

namespace {

struct Shape {
  std::int64_t groups, queries, head_dim, window;
  std::vector<std::int32_t> lengths;

  mgfl::kernels::AttentionShape attention() const {
    return {{groups, queries, head_dim}, 1 / std::sqrt(static_cast<double>(head_dim)), window};
  }
  std::int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
  Tensor bounds() const {
    std::vector<std::int32_t> sums{0};
    for (const auto length : lengths) sums.push_back(sums.back() + length);
    return integers(sums);
  }
};

const std::array<Shape, 11> shapes{{{1, 1, 64, 0, {1}},
                                    {1, 2, 64, 0, {1, 63, 0, 64, 65}},
                                    {2, 3, 64, 0, {300, 0, 7}},
                                    {1, 1, 128, 0, {129, 200}},
                                    {1, 2, 16, 0, {130}},
                                    {1, 1, 48, 0, {200}},
                                    {1, 1, 256, 0, {140}},
                                    {2, 1, 64, 1, {70, 3}},
                                    {1, 2, 64, 50, {300, 20}},
                                    {3, 1, 32, 130, {400}},
                                    {2, 2, 8, 5, {9, 30}}}};  // the original's

Tensor qkv_of(const Shape& shape, at::ScalarType dtype, double deviation = 1.3) {
  return Random(31).tensor({shape.tokens(), shape.attention().layout.row_width()}, dtype, 0, deviation);
}

}  // namespace

TEST_CASE("x86 attention and its backward") {
  for (const auto& dtype : cases)
    for (const Shape& shape : shapes) {
      CAPTURE(c10::toString(dtype.d));
      CAPTURE(shape.head_dim);
      CAPTURE(shape.window);
      CAPTURE(shape.tokens());
      const auto attention = shape.attention();
      const std::int64_t width = attention.layout.heads() * shape.head_dim;
      const Tensor qkv = qkv_of(shape, dtype.d), bounds = shape.bounds();
      Tensor out = mgfl::zeros({shape.tokens(), width}, dtype.d);
      Tensor lse = mgfl::zeros({attention.layout.heads(), shape.tokens()}, dtype.m);
      agrees<targets::attention>(
          [&](auto kernel) {
            out = mgfl::zeros({shape.tokens(), width}, dtype.d);
            lse = mgfl::zeros({attention.layout.heads(), shape.tokens()}, dtype.m);
            kernel(qkv, bounds, attention, out, lse);
            return Tensors{out, lse};
          },
          dtype.tolerance, 3);
      agrees<targets::attention_backward>(
          [&](auto kernel) {
            const Tensor dout = Random(32).tensor({shape.tokens(), width}, dtype.d);
            Tensor dqkv = mgfl::empty({shape.tokens(), attention.layout.row_width()}, dtype.d);
            dqkv.fill_(std::numeric_limits<double>::quiet_NaN());
            kernel(dout, qkv, out, lse, bounds, attention, dqkv);
            return Tensors{dqkv};
          },
          dtype.d == at::kFloat ? dtype.tolerance
                                : 3e-2);  // probabilities are rounded to bf16 before they are summed
    }
}

TEST_CASE("x86 attention with large scores") {
  for (const auto& dtype : cases) {
    const Shape shape{1, 2, 64, 0, {150}};
    agrees<targets::attention>(
        [&](auto kernel) {
          Tensor out = mgfl::zeros({150, 128}, dtype.d), lse = mgfl::zeros({2, 150}, dtype.m);
          kernel(qkv_of(shape, dtype.d, 4), shape.bounds(), shape.attention(), out, lse);
          return Tensors{out, lse};
        },
        dtype.d == at::kFloat ? dtype.tolerance : 1.6e-2);  // probabilities are rounded, too
  }
}
