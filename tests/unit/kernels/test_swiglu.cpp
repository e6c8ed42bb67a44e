#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr std::int64_t tokens = 6, ffn = 9;

numbers reference(const numbers& gate_up) {
  numbers activated;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < ffn; ++j) {
      const double gate = gate_up[t * 2 * ffn + j], up = gate_up[t * 2 * ffn + ffn + j];
      activated.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  return activated;
}
}  // namespace

TEST_CASE("swiglu and its gradient in every dtype") {
  Random random(13);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor gate_up = random.tensor({tokens, 2 * ffn}, dtype.d, 0, 2),
                 d = random.tensor({tokens, ffn}, dtype.d);
    Tensor activated = mgfl::empty({tokens, ffn}, dtype.d);
    original<targets::swiglu>(gate_up, activated);
    CHECK(distance(activated, reference(values(gate_up))) < dtype.tolerance);

    Tensor d_gate_up = mgfl::empty({tokens, 2 * ffn}, dtype.d), anew = mgfl::empty({tokens, ffn}, dtype.d);
    original<targets::swiglu_backward>(d, gate_up, d_gate_up, anew);
    CHECK(same_bits(anew, activated));
    Tensor wide = mgfl::empty({tokens, 2 * ffn}, at::kDouble),
           wide_activated = mgfl::empty({tokens, ffn}, at::kDouble);
    original<targets::swiglu_backward>(d.to(at::kDouble), gate_up.to(at::kDouble), wide, wide_activated);
    CHECK(distance(d_gate_up, wide) < dtype.tolerance);

    Tensor in_place = gate_up.clone();
    original<targets::swiglu_backward>(d, in_place, in_place, anew);
    CHECK(same_bits(in_place, d_gate_up));
    CHECK(same_bits(anew, activated));
  }
}

TEST_CASE("swiglu_backward is the derivative of swiglu") {
  Random random(14);
  const Tensor gate_up = random.tensor({tokens, 2 * ffn}, at::kDouble),
               d = random.tensor({tokens, ffn}, at::kDouble);
  Tensor activated = mgfl::empty({tokens, ffn}, at::kDouble),
         d_gate_up = mgfl::empty({tokens, 2 * ffn}, at::kDouble);
  original<targets::swiglu_backward>(d, gate_up, d_gate_up, activated);
  CHECK(distance(d_gate_up, numeric_gradient(gate_up, [&] {
                   original<targets::swiglu>(gate_up, activated);
                   return weighted_sum(activated, d);
                 })) < difference_tolerance);
}

TEST_CASE("swiglu stays finite far out") {
  Tensor gate_up = mgfl::zeros({1, 4}, at::kFloat).add(1.0), activated = mgfl::empty({1, 2}, at::kFloat);
  gate_up[0][0].fill_(-1000.0);
  gate_up[0][1].fill_(1000.0);
  Tensor d_gate_up = mgfl::empty({1, 4}, at::kFloat);
  original<targets::swiglu_backward>(mgfl::zeros({1, 2}, at::kFloat).add(1.0), gate_up, d_gate_up, activated);
  CHECK(distance(activated, numbers{0, 1000}) < 1e-6);
  CHECK(distance(d_gate_up, numbers{0, 1, 0, 1000}) < 1e-6);
}
