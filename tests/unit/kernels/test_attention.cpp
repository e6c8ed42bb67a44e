#include "tests/unit/kernels/support.hpp"

#include <algorithm>

using namespace kernel_tests;
namespace targets = mgfl::targets;
using mgfl::kernels::AttentionShape;
using bounds = std::vector<std::int32_t>;

namespace {
constexpr mgfl::kernels::QkvLayout grouped{.groups = 2, .queries_per_group = 3, .head_dim = 4};

struct Result {
  numbers out, lse;
};

/// One query at a time, over the keys that the contract says it sees.
Result reference(const numbers& qkv, const bounds& cu, const AttentionShape& shape) {
  const auto& l = shape.layout;
  const std::int64_t tokens = cu.back(), d = l.head_dim, qs = l.queries_per_group, width = l.row_width();
  Result r{numbers(tokens * l.heads() * d), numbers(l.heads() * tokens)};
  for (std::size_t doc = 0; doc + 1 < cu.size(); ++doc)
    for (std::int64_t t = cu[doc]; t < cu[doc + 1]; ++t)
      for (std::int64_t head = 0; head < l.heads(); ++head) {
        const std::int64_t group = head / qs, base = group * (qs + 2) * d;
        const double* q = qkv.data() + t * width + base + (head % qs) * d;
        const std::int64_t first =
            shape.window > 0 ? std::max<std::int64_t>(cu[doc], t - shape.window + 1) : std::int64_t{cu[doc]};
        double total = 0;
        numbers mixed(d);
        for (std::int64_t s = first; s <= t; ++s) {
          const double *k = qkv.data() + s * width + base + qs * d, *v = k + d;
          double dot = 0;
          for (std::int64_t i = 0; i < d; ++i) dot += q[i] * k[i];
          const double e = std::exp(shape.scale * dot);
          total += e;
          for (std::int64_t i = 0; i < d; ++i) mixed[i] += e * v[i];
        }
        for (std::int64_t i = 0; i < d; ++i) r.out[(t * l.heads() + head) * d + i] = mixed[i] / total;
        r.lse[head * tokens + t] = std::log(total);
      }
  return r;
}

struct Outputs {
  Tensor out, lse;
};

Outputs attend(const Tensor& qkv, const bounds& cu, const AttentionShape& shape) {
  const auto m = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Outputs o{mgfl::zeros({qkv.size(0), shape.layout.heads() * shape.layout.head_dim}, qkv.scalar_type()),
            mgfl::zeros({shape.layout.heads(), qkv.size(0)}, m)};
  original<targets::attention>(qkv, integers(cu), shape, o.out, o.lse);
  return o;
}

Tensor attend_backward(const Tensor& d_out, const Tensor& qkv, const Outputs& o, const bounds& cu,
                       const AttentionShape& shape) {
  Tensor dqkv = mgfl::empty(qkv.sizes(), qkv.scalar_type()).fill_(std::nan(""));  // must be written whole
  original<targets::attention_backward>(d_out, qkv, o.out, o.lse, integers(cu), shape, dqkv);
  return dqkv;
}
}  // namespace

TEST_CASE("attention in every dtype: documents, grouped queries, windows") {
  Random random(8);
  const bounds cu{0, 5, 5, 6, 13};  // an empty document, and one of a single token
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t window : {0, 1, 3, 100})
      for (const std::int64_t queries : {1, 3}) {
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(window);
        CAPTURE(queries);
        const AttentionShape shape{{2, queries, 4}, 0.6, window};
        const Tensor qkv = random.tensor({13, shape.layout.row_width()}, dtype.d);
        const auto got = attend(qkv, cu, shape);
        const auto expected = reference(values(qkv), cu, shape);
        CHECK(distance(got.out, expected.out) < dtype.tolerance);
        CHECK(distance(got.lse, expected.lse) < (dtype.d == at::kDouble ? 1e-13 : 3e-6));
      }
}

TEST_CASE("attention over several chunks of query rows") {
  Random random(9);
  const bounds cu{0, 3, 603};
  for (const std::int64_t window : {0, 40, 300}) {
    CAPTURE(window);
    const AttentionShape shape{{1, 2, 4}, 0.5, window};
    const Tensor qkv = random.tensor({603, shape.layout.row_width()}, at::kDouble);
    const auto got = attend(qkv, cu, shape);
    const auto expected = reference(values(qkv), cu, shape);
    CHECK(distance(got.out, expected.out) < 1e-12);
    CHECK(distance(got.lse, expected.lse) < 1e-12);

    // Gradients across chunks: a few elements by central differences.
    const Tensor d_out = random.tensor({603, 8}, at::kDouble);
    const auto dqkv = values(attend_backward(d_out, qkv, got, cu, shape));
    for (const std::int64_t element : {3 * 16 + 9, 100 * 16 + 13, 299 * 16 + 8, 599 * 16 + 1}) {
      const Tensor one = qkv.view({-1}).narrow(0, element, 1);
      const auto expected_gradient = numeric_gradient(
          one, [&] { return weighted_sum(attend(qkv, cu, shape).out, d_out); }, 1e-4);
      CHECK(distance(numbers{dqkv[element]}, expected_gradient) < 1e-7);
    }
  }
}

TEST_CASE("a window of W sees W keys, the query's own included") {
  const std::int64_t tokens = 6;
  Tensor qkv = mgfl::zeros({tokens, 3}, at::kDouble);  // q = k = 0: uniform scores; value of token j is j
  for (std::int64_t t = 0; t < tokens; ++t) qkv[t][2].fill_(static_cast<double>(t));
  const auto token4 = [&](std::int64_t window) {
    return attend(qkv, {0, 6}, {{1, 1, 1}, 1.0, window}).out[4][0].item<double>();
  };
  CHECK(token4(3) == doctest::Approx(3.0).epsilon(1e-14));
  CHECK(token4(0) == doctest::Approx(2.0).epsilon(1e-14));
  CHECK(token4(5) == doctest::Approx(2.0).epsilon(1e-14));
  CHECK(token4(1) == doctest::Approx(4.0).epsilon(1e-14));
}

TEST_CASE("attention_backward is the derivative of attention") {
  Random random(10);
  const bounds cu{0, 4, 4, 5, 9};
  for (const std::int64_t window : {0, 2})
    for (const std::int64_t queries : {1, 3}) {
      CAPTURE(window);
      CAPTURE(queries);
      const AttentionShape shape{{2, queries, 4}, 0.6, window};
      const Tensor qkv = random.tensor({9, shape.layout.row_width()}, at::kDouble);
      const Tensor d_out = random.tensor({9, shape.layout.heads() * 4}, at::kDouble);
      const auto dqkv = attend_backward(d_out, qkv, attend(qkv, cu, shape), cu, shape);
      CHECK(distance(dqkv, numeric_gradient(qkv, [&] {
                       return weighted_sum(attend(qkv, cu, shape).out, d_out);
                     })) < difference_tolerance);
    }
}

TEST_CASE("attention_backward in every dtype") {
  Random random(11);
  const bounds cu{0, 5, 5, 6, 13};
  const AttentionShape shape{grouped, 0.5, 4};
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor qkv = random.tensor({13, grouped.row_width()}, dtype.d);
    const Tensor d_out = random.tensor({13, grouped.heads() * 4}, dtype.d);
    const auto saved = attend(qkv, cu, shape);
    const Outputs wide{saved.out.to(at::kDouble), saved.lse.to(at::kDouble)};
    const auto expected = attend_backward(d_out.to(at::kDouble), qkv.to(at::kDouble), wide, cu, shape);
    CHECK(distance(attend_backward(d_out, qkv, saved, cu, shape), expected) < dtype.tolerance);
  }
}

TEST_CASE("packed documents equal each alone, bit for bit") {
  Random random(12);
  const bounds cu{0, 7, 8, 308};
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t window : {0, 5}) {
      CAPTURE(c10::toString(dtype.d));
      CAPTURE(window);
      const AttentionShape shape{grouped, 0.5, window};
      const Tensor qkv = random.tensor({308, grouped.row_width()}, dtype.d);
      const Tensor d_out = random.tensor({308, grouped.heads() * 4}, dtype.d);
      const auto packed = attend(qkv, cu, shape);
      const auto packed_grad = attend_backward(d_out, qkv, packed, cu, shape);
      for (std::size_t i = 0; i + 1 < cu.size(); ++i) {
        const std::int64_t first = cu[i], length = cu[i + 1] - cu[i];
        const Tensor alone_qkv = qkv.narrow(0, first, length).clone();
        const bounds alone_cu{0, static_cast<std::int32_t>(length)};
        const auto alone = attend(alone_qkv, alone_cu, shape);
        CHECK(same_bits(alone.out, packed.out.narrow(0, first, length)));
        CHECK(same_bits(alone.lse, packed.lse.narrow(1, first, length)));
        const auto alone_grad =
            attend_backward(d_out.narrow(0, first, length).clone(), alone_qkv, alone, alone_cu, shape);
        CHECK(same_bits(alone_grad, packed_grad.narrow(0, first, length)));
      }
    }
}

TEST_CASE("attention survives scores that overflow exp") {
  const Tensor qkv = mgfl::zeros({3, 3}, at::kFloat).add(40.0);  // scores of 1600
  const auto got = attend(qkv, {0, 3}, {{1, 1, 1}, 1.0, 0});
  CHECK(distance(got.out, numbers{40, 40, 40}) < 1e-6);
  CHECK(distance(got.lse, numbers{1600, 1600 + std::log(2), 1600 + std::log(3)}) < 1e-6);
}
