#include "tests/unit/cuda_kernels/support.hpp"

using namespace cuda_tests;

TEST_CASE("cuda rms_norm") { agreement::rms_norm(Checker{}); }
TEST_CASE("cuda rms_norm_backward") { agreement::rms_norm_backward(Checker{}); }
TEST_CASE("cuda swiglu and swiglu_backward") { agreement::swiglu(Checker{}); }
TEST_CASE("cuda swiglu at extreme gates") { agreement::swiglu_at_extreme_gates(Checker{}); }
TEST_CASE("cuda bias_grad") { agreement::bias_grad(Checker{}); }
TEST_CASE("cuda qk_norm_rotary and its backward") { agreement::qk_norm_rotary(Checker{}); }
TEST_CASE("cuda embedding and its backward") { agreement::embedding(Checker{}); }
TEST_CASE("cuda vocabulary rows") { agreement::vocabulary_rows(Checker{}); }
TEST_CASE("cuda vocabulary rows with columns at minus infinity, which contribute nothing") {
  agreement::vocabulary_rows_at_minus_infinity(Checker{});
}
TEST_CASE("cuda adamw_step") { agreement::adamw_step(Checker{}); }

TEST_CASE("cuda embedding_backward adds in ascending order of tokens, to the bit") {
  std::vector<std::int64_t> ids;
  Random random(41);
  for (int t = 0; t < 700; ++t) ids.push_back(t % 3 ? 2 : random.below(9));
  for (const Case& dtype : Checker::cases())
    Checker{}.agrees<targets::embedding_backward>(
        [&](auto kernel) {
          Tensor grad = Random(42).tensor({5, 300}, dtype.m);
          kernel(integers(ids), Random(43).tensor({700, 300}, dtype.d), 1, grad);
          return Tensors{grad};
        },
        0);
}

TEST_CASE("cuda sums of many rows, in slices longer than the least") {
  Checker{}.agrees<targets::bias_grad>(
      [&](auto kernel) {
        Tensor grad = mgfl::zeros({3}, at::kDouble);
        kernel(Random(44).tensor({70'001, 3}, at::kDouble), grad);
        return Tensors{grad};
      },
      1);
}

TEST_CASE("cuda kernels on empty shards") {
  for (const Case& dtype : Checker::cases()) {
    const Tensor no_columns = mgfl::zeros({2, 0}, dtype.d), scale = Random(45).tensor({2}, dtype.m);
    Checker{}.agrees<targets::vocab_row_statistics>(
        [&](auto kernel) {
          Tensor out[4];
          for (Tensor& t : out) t = Random(46).tensor({2}, dtype.m);
          kernel(no_columns, integers(std::vector<std::int64_t>{0, 1}), scale, 0, out[0], out[1], out[2],
                 out[3]);
          return Tensors{out[0], out[1], out[2], out[3]};
        },
        0);
    Checker{}.agrees<targets::rms_norm_backward>(
        [&](auto kernel) {
          const Tensor none = mgfl::zeros({0, 4}, dtype.d), w = Random(47).tensor({4}, dtype.d);
          Tensor dx = mgfl::zeros({0, 4}, dtype.d), w_grad = Random(48).tensor({4}, dtype.m);
          kernel(none, none, w, mgfl::zeros({0}, dtype.m), Tensor(), dx, w_grad);
          return Tensors{w_grad};
        },
        0);
    Checker{}.agrees<targets::embedding_backward>(
        [&](auto kernel) {
          Tensor grad = Random(49).tensor({5, 7}, dtype.m);
          kernel(integers(std::vector<std::int64_t>{}), mgfl::zeros({0, 7}, dtype.d), 0, grad);
          return Tensors{grad};
        },
        0);
  }
}

TEST_CASE("cuda vocab_row_statistics keeps a NaN") {
  Tensor logits = Random(50).tensor({1, 600}, at::kFloat), out[4];
  for (Tensor& t : out) t = mgfl::zeros({1}, at::kFloat);
  logits.narrow(1, 300, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  Checker::kernel<targets::vocab_row_statistics>(logits, integers(std::vector<std::int64_t>{0}),
                                                 mgfl::zeros({1}, at::kFloat).add(1), 0, out[0], out[1],
                                                 out[2], out[3]);
  for (int i = 0; i < 3; ++i) CHECK(out[i].isnan().all().item<bool>());
  CHECK_FALSE(out[3].isnan().any().item<bool>());
}
