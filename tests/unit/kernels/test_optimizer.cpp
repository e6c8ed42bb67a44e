#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr std::int64_t n = 40000;  // more than one thread's share

/// AdamW written out in double, one element.
struct Element {
  double p, m = 0, v = 0;

  void step(double g, const mgfl::kernels::AdamWStep& s) {
    g *= s.grad_scale;
    p -= s.lr * s.weight_decay * p;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(s.beta1, s.step)), v_hat = v / (1 - std::pow(s.beta2, s.step));
    p -= s.lr * m_hat / (std::sqrt(v_hat) + s.eps);
  }
};
}  // namespace

TEST_CASE("100 random AdamW steps follow the definition in double") {
  Random random(22);
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const std::int64_t count = 64;
    Tensor param = random.tensor({count}, dtype.m), exp_avg = mgfl::zeros({count}, dtype.m);
    Tensor exp_avg_sq = mgfl::zeros({count}, dtype.m);
    const bool has_model_param = dtype.d != dtype.m;
    Tensor model_param = has_model_param ? mgfl::zeros({count}, dtype.d) : Tensor();
    std::vector<Element> expected;
    for (const double p : values(param)) expected.push_back({p});
    for (std::int64_t step = 1; step <= 100; ++step) {
      const mgfl::kernels::AdamWStep s{.lr = 1e-2 * (1 + step % 3),
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-6,
                                       .weight_decay = 0.1,
                                       .step = step,
                                       .grad_scale = step % 4 ? 1.0 : 0.37};
      const Tensor grad = random.tensor({count}, dtype.m);
      const auto g = values(grad);
      original<targets::adamw_step>(param, grad, exp_avg, exp_avg_sq, model_param, s);
      for (std::int64_t i = 0; i < count; ++i) expected[i].step(g[i], s);
    }
    numbers p, m, v;
    for (const Element& e : expected) {
      p.push_back(e.p);
      m.push_back(e.m);
      v.push_back(e.v);
    }
    const double tolerance = dtype.m == at::kDouble ? 1e-13 : 5e-6;
    CHECK(distance(param, p) < tolerance);
    CHECK(distance(exp_avg, m) < tolerance);
    CHECK(distance(exp_avg_sq, v) < tolerance);
    if (has_model_param) CHECK(same_bits(model_param, param.to(dtype.d)));
  }
}

TEST_CASE("one AdamW step by hand") {
  // g = 4 * 0.5 = 2, m = 0.2, v = 0.004; corrected m = 2, v = 4: the update is lr * 2 / (2 + eps); decay
  // takes lr * 0.5 * p.
  Tensor param = mgfl::zeros({1}, at::kDouble).add(1.0), grad = mgfl::zeros({1}, at::kDouble).add(4.0);
  Tensor exp_avg = mgfl::zeros({1}, at::kDouble), exp_avg_sq = mgfl::zeros({1}, at::kDouble), none;
  original<targets::adamw_step>(param, grad, exp_avg, exp_avg_sq, none,
                                {.lr = 0.1,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 2.0,
                                 .weight_decay = 0.5,
                                 .step = 1,
                                 .grad_scale = 0.5});
  CHECK(param.item<double>() == doctest::Approx(1.0 - 0.05 - 0.1 * 2 / 4).epsilon(1e-14));
  CHECK(exp_avg.item<double>() == doctest::Approx(0.2).epsilon(1e-14));
  CHECK(exp_avg_sq.item<double>() == doctest::Approx(0.004).epsilon(1e-14));
}

TEST_CASE("an AdamW shard is updated alike in parts and on any number of threads") {
  Random random(23);
  const Tensor start = random.tensor({n}, at::kFloat), grad = random.tensor({n}, at::kFloat);
  const mgfl::kernels::AdamWStep step{.lr = 1e-3, .weight_decay = 0.01, .step = 7};
  const auto run = [&](const std::vector<std::int64_t>& cuts) {
    Tensor param = start.clone(), exp_avg = mgfl::zeros({n}, at::kFloat),
           exp_avg_sq = mgfl::zeros({n}, at::kFloat);
    Tensor none;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto piece = [&](const Tensor& t) { return t.narrow(0, cuts[i], cuts[i + 1] - cuts[i]); };
      Tensor p = piece(param), m = piece(exp_avg), v = piece(exp_avg_sq);
      original<targets::adamw_step>(p, piece(grad), m, v, none, step);
    }
    return param;
  };
  const int threads = mgfl::num_threads();
  mgfl::set_num_threads(1);
  const Tensor whole = run({0, n});
  mgfl::set_num_threads(2);
  CHECK(same_bits(run({0, n}), whole));
  CHECK(same_bits(run({0, 13, 13, 20001, n}), whole));
  mgfl::set_num_threads(threads);
}
