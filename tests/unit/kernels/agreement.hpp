/// Cases on which a kernel set's memory-bound kernels must agree with the originals, one function a kernel. A
/// checker says what is compared:
///   cases()                                  the dtypes, with the tolerance of each
///   agrees<Target>(run, tolerance)           run(kernel) makes its inputs from a fixed seed and returns what
///   the
///                                            kernel wrote; tolerance 0: bit for bit
///   kernel<Target>                           the kernel under test
#pragma once

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "tests/unit/kernels/support.hpp"

namespace kernel_tests::agreement {

namespace targets = mgfl::targets;
using Tensors = std::vector<Tensor>;

struct Case {
  at::ScalarType d, m;
  double
      tolerance;  // relative to 1 + |value|; 16 bit: one unit in the last place; 0: small shapes, bit for bit
};

/// Sizes around one register, one block and one slice.
inline constexpr std::array<std::int64_t, 4> token_counts{1, 17, 65, 300};
inline constexpr std::array<std::int64_t, 5> widths{1, 16, 19, 129, 576};

template <class Checker, class Body>
void for_each_case(const Checker& checker, Body body) {
  for (const Case& dtype : checker.cases())
    for (const auto tokens : token_counts)
      for (const auto width : widths) {
        if ((tokens == 65 && width < 129) || (tokens == 300 && width != 19))
          continue;  // they teach nothing more
        if (dtype.tolerance == 0 && (tokens > 17 || width > 16)) continue;
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(tokens);
        CAPTURE(width);
        body(dtype, tokens, width);
      }
}

template <class Checker>
void rms_norm(const Checker& checker) {
  for_each_case(checker, [&](const Case& dtype, std::int64_t tokens, std::int64_t hidden) {
    for (const bool with_residual : {false, true}) {
      CAPTURE(with_residual);
      checker.template agrees<targets::rms_norm>(
          [&](auto kernel) {
            Random random(1);
            const Tensor x = random.tensor({tokens, hidden}, dtype.d),
                         w = random.tensor({hidden}, dtype.d, 1, 0.2);
            const Tensor residual = with_residual ? random.tensor({tokens, hidden}, dtype.d) : Tensor();
            Tensor sum = with_residual ? x : Tensor(), y = mgfl::zeros({tokens, hidden}, dtype.d);
            Tensor rstd = mgfl::zeros({tokens}, dtype.m);
            kernel(x, residual, w, 1e-3, sum, y, rstd);
            return with_residual ? Tensors{sum, y, rstd} : Tensors{y, rstd};
          },
          dtype.tolerance);
    }
  });
}

template <class Checker>
void rms_norm_backward(const Checker& checker) {
  for_each_case(checker, [&](const Case& dtype, std::int64_t tokens, std::int64_t hidden) {
    for (const int aliasing : {0, 1, 2, 3}) {  // none; dx is dy; no residual; dx is residual_grad
      CAPTURE(aliasing);
      checker.template agrees<targets::rms_norm_backward>(
          [&](auto kernel) {
            Random random(2);
            const Tensor dy = random.tensor({tokens, hidden}, dtype.d),
                         x = random.tensor({tokens, hidden}, dtype.d);
            const Tensor w = random.tensor({hidden}, dtype.d, 1, 0.2);
            const Tensor rstd = random.tensor({tokens}, dtype.m, 1, 0.1);
            const Tensor residual_grad = aliasing == 2 ? Tensor() : random.tensor({tokens, hidden}, dtype.d);
            Tensor dx = aliasing == 1   ? dy
                        : aliasing == 3 ? residual_grad
                                        : mgfl::zeros({tokens, hidden}, dtype.d);
            Tensor w_grad = random.tensor({hidden}, dtype.m);
            kernel(dy, x, w, rstd, residual_grad, dx, w_grad);
            return Tensors{dx, w_grad};
          },
          dtype.tolerance);
    }
  });
}

template <class Checker>
void swiglu(const Checker& checker) {
  for_each_case(checker, [&](const Case& dtype, std::int64_t tokens, std::int64_t ffn) {
    checker.template agrees<targets::swiglu>(
        [&](auto kernel) {
          const Tensor gate_up = Random(3).tensor({tokens, 2 * ffn}, dtype.d, 0, 4);
          Tensor activated = mgfl::zeros({tokens, ffn}, dtype.d);
          kernel(gate_up, activated);
          return Tensors{activated};
        },
        dtype.tolerance);
    for (const bool in_place : {false, true})
      checker.template agrees<targets::swiglu_backward>(
          [&](auto kernel) {
            Random random(4);
            const Tensor gate_up = random.tensor({tokens, 2 * ffn}, dtype.d, 0, 4);
            const Tensor grad = random.tensor({tokens, ffn}, dtype.d);
            Tensor d_gate_up = in_place ? gate_up : mgfl::zeros({tokens, 2 * ffn}, dtype.d);
            Tensor activated = mgfl::zeros({tokens, ffn}, dtype.d);
            kernel(grad, gate_up, d_gate_up, activated);
            return Tensors{d_gate_up, activated};
          },
          dtype.tolerance);
  });
}

template <class Checker>
void swiglu_at_extreme_gates(const Checker& checker) {
  for (const auto& dtype : checker.cases())
    checker.template agrees<targets::swiglu_backward>(
        [&](auto kernel) {
          const Tensor gate_up = Random(5).tensor({40, 2}, dtype.d, 0, 80);
          Tensor d_gate_up = mgfl::zeros({40, 2}, dtype.d), activated = mgfl::zeros({40, 1}, dtype.d);
          kernel(Random(6).tensor({40, 1}, dtype.d), gate_up, d_gate_up, activated);
          return Tensors{d_gate_up, activated};
        },
        dtype.tolerance);
}

template <class Checker>
void bias_grad(const Checker& checker) {
  for_each_case(checker, [&](const Case& dtype, std::int64_t tokens, std::int64_t out) {
    checker.template agrees<targets::bias_grad>(
        [&](auto kernel) {
          Random random(7);
          const Tensor dy = random.tensor({tokens, out}, dtype.d);
          Tensor grad = random.tensor({out}, dtype.m);
          kernel(dy, grad);
          return Tensors{grad};
        },
        dtype.tolerance);
  });
}

template <class Checker>
void qk_norm_rotary(const Checker& checker) {
  struct Shape {
    std::int64_t groups, queries, head_dim, half;
  };
  for (const auto& dtype : checker.cases())
    for (const Shape& shape :
         {Shape{3, 3, 64, 32}, Shape{1, 1, 8, 4}, Shape{2, 2, 24, 7}, Shape{1, 4, 80, 20}, Shape{2, 1, 2, 1}})
      for (const std::int64_t tokens : {1, 70})
        for (const int norms : {0, 2, 3}) {
          const std::int64_t groups = shape.groups, queries = shape.queries, head_dim = shape.head_dim;
          const std::int64_t half = shape.half;
          if (dtype.tolerance == 0 && (tokens > 1 || head_dim > 8)) continue;
          CAPTURE(c10::toString(dtype.d));
          CAPTURE(head_dim);
          CAPTURE(tokens);
          CAPTURE(norms);
          const mgfl::kernels::QkvLayout layout{groups, queries, head_dim};
          const std::int64_t width = layout.row_width();
          const auto angles = [&](bool sine) {
            const Tensor angle = Random(8).tensor({tokens, half}, dtype.m);
            return sine ? angle.sin() : angle.cos();
          };
          const auto norm = [&](int which) {
            return norms & which ? Random(9 + which).tensor({head_dim}, dtype.d, 1, 0.2) : Tensor();
          };
          for (const bool in_place : {false, true}) {
            if (in_place && norms) continue;
            checker.template agrees<targets::qk_norm_rotary>(
                [&](auto kernel) {
                  const Tensor qkv = Random(12).tensor({tokens, width}, dtype.d);
                  Tensor out = in_place ? qkv : mgfl::zeros({tokens, width}, dtype.d);
                  Tensor rstd = mgfl::zeros({tokens, groups * (queries + 1)}, dtype.m);
                  kernel(qkv, norm(1), norm(2), 1e-3, angles(false), angles(true), layout, out, rstd);
                  return Tensors{out, rstd};
                },
                dtype.tolerance);
          }
          checker.template agrees<targets::qk_norm_rotary_backward>(
              [&](auto kernel) {
                Random random(13);
                Tensor dqkv = random.tensor({tokens, width}, dtype.d);
                const Tensor qkv = norms ? random.tensor({tokens, width}, dtype.d) : Tensor();
                const Tensor rstd =
                    norms ? random.tensor({tokens, groups * (queries + 1)}, dtype.m, 1, 0.1) : Tensor();
                Tensor q_grad = norms & 1 ? random.tensor({head_dim}, dtype.m) : Tensor();
                Tensor k_grad = norms & 2 ? random.tensor({head_dim}, dtype.m) : Tensor();
                kernel(dqkv, qkv, norm(1), norm(2), angles(false), angles(true), rstd, layout, q_grad,
                       k_grad);
                Tensors written{dqkv};
                for (const Tensor& grad : {q_grad, k_grad})
                  if (grad.defined()) written.push_back(grad);
                return written;
              },
              dtype.tolerance);
        }
}

template <class Checker>
void embedding(const Checker& checker) {
  for_each_case(checker, [&](const Case& dtype, std::int64_t tokens, std::int64_t hidden) {
    std::vector<std::int64_t> ids;
    Random random(14);
    for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(random.below(30));
    checker.template agrees<targets::embedding>(
        [&](auto kernel) {
          const Tensor w = Random(15).tensor({11, hidden}, dtype.d);
          Tensor out = Random(16).tensor({tokens, hidden}, dtype.d);
          kernel(integers(ids), w, 10, out);
          return Tensors{out};
        },
        0);
    checker.template agrees<targets::embedding_backward>(
        [&](auto kernel) {
          Tensor grad = Random(17).tensor({11, hidden}, dtype.m);
          kernel(integers(ids), Random(18).tensor({tokens, hidden}, dtype.d), 10, grad);
          return Tensors{grad};
        },
        dtype.tolerance);
  });
}

template <class Checker>
void vocabulary_rows(const Checker& checker) {
  for (const auto& dtype : checker.cases())
    for (const std::int64_t columns : {1, 15, 16, 63, 64, 65, 100, 1000, 5003})
      for (const std::int64_t rows : {1, 5}) {
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(columns);
        std::vector<std::int64_t> labels;
        for (std::int64_t r = 0; r < rows; ++r)
          labels.push_back(r == 1 ? 3 : r == 2 ? 99999 : 7 + (r * 13) % columns);
        checker.template agrees<targets::vocab_row_statistics>(
            [&](auto kernel) {
              Random random(19);
              const Tensor logits = random.tensor({rows, columns}, dtype.d, -3, 4);
              const Tensor scale = random.tensor({rows}, dtype.m, 1, 0.2);
              Tensor out[4];
              for (Tensor& t : out) t = mgfl::zeros({rows}, dtype.m);
              kernel(logits, integers(labels), scale, 7, out[0], out[1], out[2], out[3]);
              return Tensors{out[0], out[1], out[2], out[3]};
            },
            dtype.tolerance);
        for (const bool with_entropy : {false, true})
          checker.template agrees<targets::vocab_rows_backward>(
              [&](auto kernel) {
                Random random(20);
                Tensor logits = random.tensor({rows, columns}, dtype.d, -3, 4);
                const Tensor scale = random.tensor({rows}, dtype.m, 1, 0.2);
                const Tensor lse = logits.to(dtype.m).mul(scale.view({rows, 1})).logsumexp(-1);
                const Tensor entropy = random.tensor({rows}, dtype.m, 2, 0.2),
                             d_log = random.tensor({rows}, dtype.m);
                const Tensor d_entropy = with_entropy ? random.tensor({rows}, dtype.m) : Tensor();
                kernel(logits, integers(labels), scale, 7, lse, entropy, d_log, d_entropy);
                return Tensors{logits};
              },
              dtype.tolerance);
      }
}

template <class Checker>
void vocabulary_rows_at_minus_infinity(const Checker& checker) {
  Tensor logits = Random(21).tensor({2, 50}, at::kFloat);
  logits.narrow(1, 40, 10).fill_(-std::numeric_limits<double>::infinity());
  const Tensor seen = logits.narrow(1, 0, 40).contiguous(), scale = mgfl::zeros({2}, at::kFloat).add(1);
  const Tensor labels = integers(std::vector<std::int64_t>{0, 39});
  const auto statistics = [&](const Tensor& of) {
    Tensor out[4];
    for (Tensor& t : out) t = mgfl::zeros({2}, at::kFloat);
    Checker::template kernel<targets::vocab_row_statistics>(of, labels, scale, 0, out[0], out[1], out[2],
                                                            out[3]);
    return Tensors{out[0], out[1], out[2], out[3]};
  };
  const Tensors with = statistics(logits), without = statistics(seen);
  for (int i = 0; i < 4; ++i) CHECK(distance(with[i], without[i]) < 1e-6);
  const Tensor lse = with[1].log().add(with[0]);
  Checker::template kernel<targets::vocab_rows_backward>(logits, labels, scale, 0, lse, lse, scale, scale);
  CHECK(logits.narrow(1, 40, 10).eq(0).all().item<bool>());
  CHECK(distance(logits, logits) == 0);  // no NaN
}

template <class Checker>
void adamw_step(const Checker& checker) {
  for (const auto& dtype : checker.cases())
    for (const std::int64_t n : {1, 15, 16, 17, 4095, 4096, 12345})
      for (const bool separate : {false, true}) {
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(n);
        if (dtype.d == at::kHalf && !separate) continue;  // fp32 alone
        const mgfl::kernels::AdamWStep step{0.01, 0.9, 0.95, 1e-8, 0.1, 3, 0.7};
        checker.template agrees<targets::adamw_step>(
            [&](auto kernel) {
              Random random(22);
              Tensor param = random.tensor({n}, dtype.m), first = random.tensor({n}, dtype.m);
              Tensor second = random.tensor({n}, dtype.m, 1, 0.1),
                     model = separate ? mgfl::zeros({n}, dtype.d) : Tensor();
              kernel(param, random.tensor({n}, dtype.m), first, second, model, step);
              return separate ? Tensors{param, first, second, model} : Tensors{param, first, second};
            },
            dtype.tolerance);
      }
}

}  // namespace kernel_tests::agreement
