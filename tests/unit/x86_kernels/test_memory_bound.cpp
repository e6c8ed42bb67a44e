#include "tests/unit/x86_kernels/support.hpp"

using namespace x86_tests;

TEST_CASE("x86 rms_norm") { agreement::rms_norm(Checker{}); }
TEST_CASE("x86 rms_norm_backward") { agreement::rms_norm_backward(Checker{}); }
TEST_CASE("x86 swiglu and swiglu_backward") { agreement::swiglu(Checker{}); }
TEST_CASE("x86 swiglu at extreme gates") { agreement::swiglu_at_extreme_gates(Checker{}); }
TEST_CASE("x86 bias_grad") { agreement::bias_grad(Checker{}); }
TEST_CASE("x86 qk_norm_rotary and its backward") { agreement::qk_norm_rotary(Checker{}); }
TEST_CASE("x86 embedding and its backward") { agreement::embedding(Checker{}); }
TEST_CASE("x86 vocabulary rows") { agreement::vocabulary_rows(Checker{}); }
TEST_CASE("x86 vocabulary rows with columns at minus infinity, which contribute nothing") {
  agreement::vocabulary_rows_at_minus_infinity(Checker{});
}
TEST_CASE("x86 adamw_step") { agreement::adamw_step(Checker{}); }

TEST_CASE("x86 linear_weight_grad sums in fp32") {
  const Case& dtype = cases[1];                    // the others are ATen's
  constexpr bool exact = MGFL_X86_ISA_LEVEL >= 3;  // below, bf16 is ATen's, too
  for (const std::int64_t tokens : {1, 2, 37, 300})
    for (const auto& shape :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {8, 32}, {13, 47}, {40, 70}, {270, 33}}) {
      const auto out = shape.first, in = shape.second;
      CAPTURE(tokens);
      CAPTURE(out);
      agrees<targets::linear_weight_grad>(
          [&](auto kernel) {
            Random random(40);
            Tensor dy = random.tensor({tokens, out}, dtype.d), x = random.tensor({tokens, in}, dtype.d);
            Tensor grad = random.tensor({out, in}, dtype.m);
            if (exact && kernel == original<targets::linear_weight_grad>) {
              dy = dy.to(at::kFloat);  // the original rounds its product to bf16
              x = x.to(at::kFloat);
            }
            kernel(dy, x, grad);
            return Tensors{grad};
          },
          dtype.tolerance);
    }
}
