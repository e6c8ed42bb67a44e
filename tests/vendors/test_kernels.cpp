#include <functional>
#include <optional>

#include "mgfl/override/dispatch.hpp"
#include "mgfl/parallel/activation.hpp"
#include "tests/unit/kernels/support.hpp"
#include "tests/vendors/chip.hpp"
#include "vendors/kunlunxin/kernels/linear.hpp"
#include "vendors/kunlunxin/kernels/rotary.hpp"
#include "vendors/kunlunxin/kernels/swiglu.hpp"
#include "vendors/kunlunxin/tensor_parallel/layers.hpp"
#include "vendors/npu/kernels/optimizer.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;
namespace vendors = mgfl::vendors;
namespace chip = mgfl_test::chip;

namespace {

using Tensors = std::vector<Tensor>;

/// Where a run's tensors lie.
using Place = std::function<Tensor(const Tensor&)>;
const Place on_host = [](const Tensor& t) { return t.defined() ? t.clone() : t; };
const Place on_chip = [](const Tensor& t) { return chip::to_chip(t); };

/// One unit in the last place: a loop's tail is not computed as its vectors are.
double last_digit(const Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return 4e-16;
    case at::kFloat:
      return 2.4e-7;
    case at::kBFloat16:
      return 8e-3;
    default:
      return 1e-3;
  }
}

/// What a vendor's `body` writes equals what the original writes, on host and on chip; the override itself,
/// called with tensors of a chip, runs that body, and with tensors of the host the next one in the chain.
/// run(kernel, place) makes its inputs from a fixed seed, puts them in place and returns what the kernel
/// wrote.
template <class Target, class V, class Run>
void agrees(Run run, auto* body, double tolerance, std::optional<double> main_tolerance = std::nullopt) {
  constexpr auto override_call = mgfl::implementation<Target, V>::call;
  const Tensors expected = run(original<Target>, on_host);
  const Tensors host = run(body, on_host), from_chip = run(body, on_chip),
                from_override = run(override_call, on_chip), handed_on = run(override_call, on_host);
  const Tensors next = run(mgfl::dispatch_next<Target, V>, on_host);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK((host[i].scalar_type() == expected[i].scalar_type()));
    const bool is_main = expected[i].scalar_type() == at::kFloat || expected[i].scalar_type() == at::kDouble;
    CHECK(distance(host[i], expected[i]) <= (is_main ? main_tolerance.value_or(tolerance) : tolerance));
    CHECK(distance(chip::to_host(from_chip[i]), host[i]) <= last_digit(host[i]));
    CHECK(same_bits(chip::to_host(from_override[i]), chip::to_host(from_chip[i])));
    CHECK(same_bits(handed_on[i], next[i]));
  }
}

/// One unit in the last place of a 16-bit result: its only rounding may fall on either side.
double one_rounding(const DtypeCase& dtype) {
  return dtype.d == at::kBFloat16 ? 8e-3 : dtype.d == at::kHalf ? 1e-3 : dtype.tolerance;
}
double main_tolerance(const DtypeCase& dtype) { return dtype.m == at::kDouble ? 1e-13 : 5e-6; }

}  // namespace

TEST_CASE("the next in the chain is the machine's kernel set, then the original, whoever is preferred") {
  using T = targets::swiglu;
  static_assert(std::is_same_v<mgfl::next_vendor<T, vendors::kunlunxin>,
                               typename mgfl::resolve<T, vendors::default_>::type>);
  static_assert(mgfl::dispatch_next<T, vendors::kunlunxin> ==
                mgfl::implementation<T, mgfl::next_vendor<T, vendors::kunlunxin>>::call);
  static_assert(
      std::is_same_v<mgfl::next_vendor<targets::preload_tensors, vendors::kunlunxin>, vendors::original>);
}

TEST_CASE("kunlunxin: swiglu") {
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t tokens : {1, 37}) {
      CAPTURE(c10::toString(dtype.d));
      const std::int64_t ffn = 48;
      agrees<targets::swiglu, vendors::kunlunxin>(
          [&](auto* kernel, const Place& place) {
            Random random(2);
            const Tensor gate_up = place(random.tensor({tokens, 2 * ffn}, dtype.d, 0, 2));
            Tensor activated = place(mgfl::zeros({tokens, ffn}, dtype.d));
            kernel(gate_up, activated);
            return Tensors{activated};
          },
          &mgfl::kunlunxin::swiglu, one_rounding(dtype));
      for (const bool in_place : {false, true})
        agrees<targets::swiglu_backward, vendors::kunlunxin>(
            [&](auto* kernel, const Place& place) {
              Random random(3);
              Tensor gate_up = place(random.tensor({tokens, 2 * ffn}, dtype.d, 0, 2));
              const Tensor d = place(random.tensor({tokens, ffn}, dtype.d));
              Tensor d_gate_up = in_place ? gate_up : place(mgfl::zeros({tokens, 2 * ffn}, dtype.d));
              Tensor activated = place(mgfl::zeros({tokens, ffn}, dtype.d));
              kernel(d, gate_up, d_gate_up, activated);
              return Tensors{d_gate_up, activated};
            },
            &mgfl::kunlunxin::swiglu_backward, one_rounding(dtype));
    }
}

TEST_CASE("kunlunxin: linear and its gradients") {
  constexpr std::int64_t in = 72, out = 80;
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t tokens : {0, 1, 65}) {
      CAPTURE(c10::toString(dtype.d));
      CAPTURE(tokens);
      // 16-bit sums of `in` products may be rounded by the other side of a tie, and sums of fp32 differ in
      // order.
      const double tolerance = dtype.d == at::kFloat ? 2e-5 : one_rounding(dtype);
      for (const bool biased : {false, true})
        agrees<targets::linear, vendors::kunlunxin>(
            [&](auto* kernel, const Place& place) {
              Random random(4);
              const Tensor x = place(random.tensor({tokens, in}, dtype.d)),
                           w = place(random.tensor({out, in}, dtype.d, 0, 0.2));
              const Tensor bias = place(biased ? random.tensor({out}, dtype.d) : Tensor());
              Tensor y = place(mgfl::zeros({tokens, out}, dtype.d));
              kernel(x, w, bias, y);
              return Tensors{y};
            },
            &mgfl::kunlunxin::linear, tolerance);
      agrees<targets::linear_input_grad, vendors::kunlunxin>(
          [&](auto* kernel, const Place& place) {
            Random random(5);
            const Tensor dy = place(random.tensor({tokens, out}, dtype.d)),
                         w = place(random.tensor({out, in}, dtype.d, 0, 0.2));
            Tensor dx = place(mgfl::zeros({tokens, in}, dtype.d));
            kernel(dy, w, dx);
            return Tensors{dx};
          },
          &mgfl::kunlunxin::linear_input_grad, tolerance);
      // The original rounds a bf16 share once before it adds it, kunlunxin never.
      agrees<targets::linear_weight_grad, vendors::kunlunxin>(
          [&](auto* kernel, const Place& place) {
            Random random(6);
            const Tensor dy = place(random.tensor({tokens, out}, dtype.d)),
                         x = place(random.tensor({tokens, in}, dtype.d));
            Tensor main_grad = place(random.tensor({out, in}, dtype.m));
            kernel(dy, x, main_grad);
            return Tensors{main_grad};
          },
          &mgfl::kunlunxin::linear_weight_grad, dtype.d == at::kBFloat16 ? 3e-2 : tolerance,
          dtype.d == at::kBFloat16 ? 3e-2
          : dtype.m == at::kDouble ? 1e-13
                                   : 2e-5);
    }
}

TEST_CASE("kunlunxin: a column-parallel layer's forward pass") {
  using mgfl::tensor_parallel::ColumnParallelLinear;
  using Input = mgfl::Act<mgfl::placement::Replicated>;
  constexpr std::int64_t in = 72, columns = 40;
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t tokens : {0, 1, 65})
      for (const bool biased : {false, true}) {
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(tokens);
        CAPTURE(biased);
        agrees<targets::column_parallel_linear_forward, vendors::kunlunxin>(
            [&](auto* forward, const Place& place) {
              Random random(11);
              const Tensor x = place(random.tensor({tokens, in}, dtype.d)),
                           w = place(random.tensor({columns, in}, dtype.d, 0, 0.2)),
                           bias = place(biased ? random.tensor({columns}, dtype.d) : Tensor());
              Tensor y = place(mgfl::zeros({tokens, columns}, dtype.d));
              forward(ColumnParallelLinear{w, bias}, Input{x}, y);
              return Tensors{y};
            },
            &mgfl::kunlunxin::column_parallel_linear, dtype.d == at::kFloat ? 2e-5 : one_rounding(dtype));
      }
}

TEST_CASE("kunlunxin: a column-parallel layer takes inputs and weights that are strided") {
  Random random(12);
  const Tensor wide = random.tensor({5, 16}, at::kDouble), weight = random.tensor({8, 6}, at::kDouble), none;
  Tensor y = mgfl::zeros({5, 6}, at::kDouble);
  mgfl::kunlunxin::column_parallel_linear({weight.t(), none}, {wide.narrow(1, 4, 8)}, y);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t c = 0; c < 6; ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < 8; ++i) sum += wide[t][4 + i].item<double>() * weight[i][c].item<double>();
      CHECK(y[t][c].item<double>() == doctest::Approx(sum).epsilon(1e-12));
    }
}

TEST_CASE("kunlunxin: a bf16 weight gradient is added to the main gradient without a rounding") {
  // 1 + 2^-7 times itself is 1 + 2^-6 + 2^-14, which bf16 cannot hold; neither can it hold the sum with 1000.
  const Tensor value = mgfl::zeros({1, 1}, at::kBFloat16).add(1.0 + 1.0 / 128);
  Tensor main_grad = mgfl::zeros({1, 1}, at::kFloat).add(1000.0);
  mgfl::kunlunxin::linear_weight_grad(value, value, main_grad);
  CHECK(main_grad.item<double>() == static_cast<float>(1000.0 + (1.0 + 1.0 / 128) * (1.0 + 1.0 / 128)));
}

TEST_CASE("kunlunxin: qk_norm_rotary, with each choice of norms") {
  constexpr mgfl::kernels::QkvLayout layout{.groups = 2, .queries_per_group = 3, .head_dim = 10};
  constexpr std::int64_t tokens = 6, width = layout.row_width(), normed_heads = layout.groups * 4;
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t half : {5, 3})
      for (const int norms : {0, 1, 2, 3}) {
        CAPTURE(c10::toString(dtype.d));
        CAPTURE(half);
        CAPTURE(norms);
        const auto inputs = [&](Random& random, const Place& place) {
          const Tensor qkv = random.tensor({tokens, width}, dtype.d);
          const Tensor q_norm = norms & 1 ? random.tensor({layout.head_dim}, dtype.d, 1, 0.3) : Tensor();
          const Tensor k_norm = norms & 2 ? random.tensor({layout.head_dim}, dtype.d, 1, 0.3) : Tensor();
          const Tensor angle = random.tensor({tokens, half}, at::kDouble, 0, 2);
          return Tensors{place(qkv), place(q_norm), place(k_norm), place(angle.cos().to(dtype.m)),
                         place(angle.sin().to(dtype.m))};
        };
        agrees<targets::qk_norm_rotary, vendors::kunlunxin>(
            [&](auto* kernel, const Place& place) {
              Random random(7);
              const Tensors in = inputs(random, place);
              Tensor out = place(mgfl::zeros({tokens, width}, dtype.d));
              Tensor rstd = place(mgfl::zeros({tokens, normed_heads}, dtype.m));
              kernel(in[0], in[1], in[2], 1e-2, in[3], in[4], layout, out, rstd);
              Tensors written{out, rstd};
              if (norms == 0) {
                Tensor same = in[0];
                kernel(same, in[1], in[2], 1e-2, in[3], in[4], layout, same, rstd);
                written.push_back(same);
              }
              return written;
            },
            &mgfl::kunlunxin::qk_norm_rotary, one_rounding(dtype), main_tolerance(dtype));
        agrees<targets::qk_norm_rotary_backward, vendors::kunlunxin>(
            [&](auto* kernel, const Place& place) {
              Random random(8);
              const Tensors in = inputs(random, place);
              const Tensor rstd = place(random.tensor({tokens, normed_heads}, dtype.m, 1, 0.1));
              Tensor dqkv = place(random.tensor({tokens, width}, dtype.d));
              const Tensor start = random.tensor({layout.head_dim}, dtype.m);
              Tensor q_grad = place(norms & 1 ? start : Tensor()),
                     k_grad = place(norms & 2 ? start : Tensor());
              kernel(dqkv, in[0], in[1], in[2], in[3], in[4], rstd, layout, q_grad, k_grad);
              Tensors written{dqkv};
              for (const Tensor& grad : {q_grad, k_grad})
                if (grad.defined()) written.push_back(grad);
              return written;
            },
            &mgfl::kunlunxin::qk_norm_rotary_backward, one_rounding(dtype), 2 * main_tolerance(dtype));
      }
}

TEST_CASE("npu: 20 AdamW steps, clipped or not; the gradient stays as it is") {
  for (const auto& dtype : dtype_cases)
    for (const std::int64_t count : {0, 1, 1003}) {
      CAPTURE(c10::toString(dtype.d));
      CAPTURE(count);
      agrees<targets::adamw_step, vendors::npu>(
          [&](auto* kernel, const Place& place) {
            Random random(9);
            Tensor param = place(random.tensor({count}, dtype.m));
            Tensor exp_avg = place(mgfl::zeros({count}, dtype.m)),
                   exp_avg_sq = place(mgfl::zeros({count}, dtype.m));
            Tensor model_param = place(dtype.d == dtype.m ? Tensor() : mgfl::zeros({count}, dtype.d));
            Tensors written;
            for (std::int64_t step = 1; step <= 20; ++step) {
              const Tensor values = random.tensor({count}, dtype.m), grad = place(values);
              kernel(param, grad, exp_avg, exp_avg_sq, model_param,
                     {.lr = 1e-2 * (1 + step % 3),
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-6,
                      .weight_decay = 0.1,
                      .step = step,
                      .grad_scale = step % 3 ? 1.0 : 0.37});
              CHECK(same_bits(chip::to_host(grad), values));
            }
            if (model_param.defined()) {
              CHECK(same_bits(chip::to_host(model_param), chip::to_host(param).to(dtype.d)));
              written.push_back(model_param);
            }
            written.insert(written.end(), {param, exp_avg, exp_avg_sq});
            return written;
          },
          &mgfl::npu::fused_adamw_step, one_rounding(dtype), main_tolerance(dtype));
    }
}

TEST_CASE("npu: a clipped step longer than one piece of scaled gradients") {
  constexpr std::int64_t count = (std::int64_t{16} << 20) + 5;
  const mgfl::kernels::AdamWStep step{.lr = 0.1, .step = 1, .grad_scale = 0.5};
  const Tensor grad = mgfl::zeros({count}, at::kFloat).add(4.0);
  Tensor param = mgfl::zeros({count}, at::kFloat), exp_avg = param.clone(), exp_avg_sq = param.clone(), none;
  mgfl::npu::fused_adamw_step(param, grad, exp_avg, exp_avg_sq, none, step);
  for (const std::int64_t i : {std::int64_t{0}, count - 6, count - 5, count - 1}) {
    CHECK(param[i].item<double>() == doctest::Approx(-0.1).epsilon(1e-6));
    CHECK(exp_avg[i].item<double>() == doctest::Approx(0.2).epsilon(1e-6));
  }
  CHECK(exp_avg.min().item<double>() == exp_avg.max().item<double>());
}

TEST_CASE("the kernel set leaves a chip's tensors to the originals") {
  Random random(10);
  const Tensor x = random.tensor({65, 64}, at::kFloat), w = random.tensor({64}, at::kFloat, 1, 0.2);
  const auto run = [&](auto* kernel, const Place& place) {
    Tensor none, y = place(mgfl::zeros({65, 64}, at::kFloat)), rstd = place(mgfl::zeros({65}, at::kFloat));
    kernel(place(x), none, place(w), 1e-5, none, y, rstd);
    return chip::to_host(y);
  };
  constexpr auto rms_norm = mgfl::dispatch<targets::rms_norm>;
  CHECK(distance(run(rms_norm, on_chip), run(original<targets::rms_norm>, on_host)) < 1e-6);
}
