#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr mgfl::kernels::QkvLayout layout{.groups = 2, .queries_per_group = 3, .head_dim = 10};
constexpr std::int64_t tokens = 4, width = layout.row_width(), kinds = layout.queries_per_group + 2;
constexpr double eps = 1e-2;

struct Angles {
  Tensor cos, sin;
};

/// HF's table: the angle of position p and pair j is p * base^(-2j / dims).
Angles angles(std::int64_t half, at::ScalarType m) {
  Tensor cos = mgfl::empty({tokens, half}, at::kDouble), sin = mgfl::empty({tokens, half}, at::kDouble);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < half; ++j) {
      const double angle = (t + 5) * std::pow(100.0, -1.0 * j / half);
      cos.data_ptr<double>()[t * half + j] = std::cos(angle);
      sin.data_ptr<double>()[t * half + j] = std::sin(angle);
    }
  return {cos.to(m), sin.to(m)};
}

/// Plain loops over one row after the other; an empty weight means no norm.
numbers reference(numbers rows, const numbers& q_norm, const numbers& k_norm, const numbers& cos,
                  const numbers& sin, std::int64_t half, numbers& rstds) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t head = 0; head < layout.groups * kinds; ++head) {
      const std::int64_t kind = head % kinds;
      if (kind == kinds - 1) continue;  // v
      double* h = rows.data() + t * width + head * layout.head_dim;
      const numbers& w = kind < layout.queries_per_group ? q_norm : k_norm;
      if (!w.empty()) {
        double squares = 0;
        for (std::int64_t i = 0; i < layout.head_dim; ++i) squares += h[i] * h[i];
        const double rstd = 1 / std::sqrt(squares / layout.head_dim + eps);
        rstds.push_back(rstd);
        for (std::int64_t i = 0; i < layout.head_dim; ++i) h[i] *= rstd * w[i];
      }
      for (std::int64_t j = 0; j < half; ++j) {
        const double a = h[j], b = h[j + half], c = cos[t * half + j], s = sin[t * half + j];
        h[j] = a * c - b * s;
        h[j + half] = b * c + a * s;
      }
    }
  return rows;
}

Tensor make_rstd(at::ScalarType m) {
  return mgfl::zeros({tokens, layout.groups * (layout.queries_per_group + 1)}, m);
}
}  // namespace

TEST_CASE("qk_norm_rotary in every dtype: full and partial rotation, with and without norms") {
  Random random(5);
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t half : {5, 3})
      for (const bool normed : {false, true}) {
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(half);
        CAPTURE(normed);
        const Tensor qkv = random.tensor({tokens, width}, dtype.d);
        const Tensor q_norm = normed ? random.tensor({layout.head_dim}, dtype.d, 1, 0.3) : Tensor();
        const Tensor k_norm = normed ? random.tensor({layout.head_dim}, dtype.d, 1, 0.3) : Tensor();
        const auto [cos, sin] = angles(half, dtype.m);
        Tensor out = mgfl::empty({tokens, width}, dtype.d), rstd = make_rstd(dtype.m);
        original<targets::qk_norm_rotary>(qkv, q_norm, k_norm, eps, cos, sin, layout, out, rstd);
        numbers rstds;
        const auto expected =
            reference(values(qkv), normed ? values(q_norm) : numbers{}, normed ? values(k_norm) : numbers{},
                      values(cos), values(sin), half, rstds);
        CHECK(distance(out, expected) < dtype.tolerance);
        if (normed) CHECK(distance(rstd, rstds) < (dtype.d == at::kDouble ? 1e-13 : 3e-6));
        if (!normed) {
          Tensor in_place = qkv.clone();
          original<targets::qk_norm_rotary>(in_place, q_norm, k_norm, eps, cos, sin, layout, in_place, rstd);
          CHECK(same_bits(in_place, out));
        }
      }
}

TEST_CASE("qk_norm_rotary_backward is the derivative of qk_norm_rotary") {
  Random random(6);
  for (const bool normed : {false, true})
    for (const std::int64_t half : {5, 3}) {
      CAPTURE(normed);
      CAPTURE(half);
      const Tensor qkv = random.tensor({tokens, width}, at::kDouble),
                   d_out = random.tensor({tokens, width}, at::kDouble);
      const Tensor q_norm = normed ? random.tensor({layout.head_dim}, at::kDouble, 1, 0.3) : Tensor();
      const Tensor k_norm = normed ? random.tensor({layout.head_dim}, at::kDouble, 1, 0.3) : Tensor();
      const auto table = angles(half, at::kDouble);
      Tensor out = mgfl::empty({tokens, width}, at::kDouble), rstd = make_rstd(at::kDouble);
      const auto loss = [&] {
        original<targets::qk_norm_rotary>(qkv, q_norm, k_norm, eps, table.cos, table.sin, layout, out, rstd);
        return weighted_sum(out, d_out);
      };
      loss();
      Tensor dqkv = d_out.clone();
      Tensor q_grad = normed ? mgfl::zeros({layout.head_dim}, at::kDouble).add(2.0) : Tensor();
      Tensor k_grad = normed ? mgfl::zeros({layout.head_dim}, at::kDouble).add(3.0) : Tensor();
      original<targets::qk_norm_rotary_backward>(dqkv, qkv, q_norm, k_norm, table.cos, table.sin, rstd,
                                                 layout, q_grad, k_grad);
      CHECK(distance(dqkv, numeric_gradient(qkv, loss)) < difference_tolerance);
      if (!normed) continue;
      CHECK(distance(q_grad.sub(2.0), numeric_gradient(q_norm, loss)) < difference_tolerance);
      CHECK(distance(k_grad.sub(3.0), numeric_gradient(k_norm, loss)) < difference_tolerance);
    }
}

TEST_CASE("qk_norm_rotary_backward in every dtype") {
  Random random(7);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor qkv = random.tensor({tokens, width}, dtype.d),
                 d_out = random.tensor({tokens, width}, dtype.d);
    const Tensor q_norm = random.tensor({layout.head_dim}, dtype.d, 1, 0.3);
    const Tensor k_norm = random.tensor({layout.head_dim}, dtype.d, 1, 0.3);
    const auto table = angles(5, dtype.m);
    const Tensor rstd = qkv.to(at::kDouble)
                            .view({tokens, layout.groups, kinds, layout.head_dim})
                            .narrow(2, 0, kinds - 1)
                            .square()
                            .mean(-1)
                            .add(eps)
                            .rsqrt()
                            .reshape({tokens, -1})
                            .to(dtype.m);
    const auto run = [&](const DtypeCase& as) {
      std::array<Tensor, 3> grads{d_out.to(as.d).clone(), mgfl::zeros({layout.head_dim}, as.m),
                                  mgfl::zeros({layout.head_dim}, as.m)};
      original<targets::qk_norm_rotary_backward>(grads[0], qkv.to(as.d), q_norm.to(as.d), k_norm.to(as.d),
                                                 table.cos.to(as.m), table.sin.to(as.m), rstd.to(as.m),
                                                 layout, grads[1], grads[2]);
      return grads;
    };
    const auto got = run(dtype), expected = run(dtype_cases[0]);
    CHECK(distance(got[0], expected[0]) < dtype.tolerance);
    CHECK(distance(got[1], expected[1]) < 3e-6);
    CHECK(distance(got[2], expected[2]) < 3e-6);
  }
}
