// Speed of the active kernels and of the originals on SmolLM2-135M's shapes: GFLOP/s of attention and of the
// linear layers, GB/s of memory that must be moved for the rest. Two threads, or as many as
// MGFL_BENCH_THREADS says.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/kernels/kernels.hpp"

namespace {

using mgfl::Tensor;
namespace targets = mgfl::targets;
constexpr std::int64_t tokens = 2048, hidden = 576, ffn = 1536, groups = 3, queries = 3, head_dim = 64,
                       vocabulary = 49152;

template <class Target, bool Original>
constexpr auto body() {
  if constexpr (Original) {
    return &mgfl::implementation<Target, mgfl::vendors::original>::call;
  } else {
    return mgfl::dispatch<Target>;
  }
}

Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
  return mgfl::empty(shape, at::kFloat).normal_().to(dtype);
}

at::ScalarType dtype_of(const benchmark::State& state) {
  return state.range(0) == 16 ? at::kBFloat16 : at::kFloat;
}

/// Runs f and reports the rate of `amount` (operations or bytes a run) in units of 1e9.
template <class F>
void measure(benchmark::State& state, const char* unit, double amount, F f) {
  f();
  for (auto _ : state) f();
  state.counters[unit] = benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

struct Packed {
  mgfl::kernels::AttentionShape shape{{groups, queries, head_dim}, 0.125, 0};
  Tensor qkv, bounds, out, lse, dout, dqkv;
  double products = 0;  // multiply-adds of one product over the visible scores

  explicit Packed(const benchmark::State& state) {
    const auto dtype = dtype_of(state);
    const std::int64_t length = state.range(1), documents = tokens / length;
    shape.layout.head_dim = state.range(2);
    shape.scale = 1 / std::sqrt(static_cast<double>(shape.layout.head_dim));
    const std::int64_t width = shape.layout.heads() * shape.layout.head_dim;
    qkv = random({tokens, shape.layout.row_width()}, dtype);
    dout = random({tokens, width}, dtype);
    out = mgfl::zeros({tokens, width}, dtype);
    dqkv = mgfl::zeros({tokens, shape.layout.row_width()}, dtype);
    lse = mgfl::zeros({shape.layout.heads(), tokens}, at::kFloat);
    bounds = mgfl::zeros({documents + 1}, at::kInt);
    for (std::int64_t i = 0; i <= documents; ++i)
      bounds.mutable_data_ptr<std::int32_t>()[i] = static_cast<int>(i * length);
    products = 0.5 * static_cast<double>(documents * length * (length + 1) * width);
  }
};

template <bool Original>
void attention(benchmark::State& state) {
  Packed p(state);
  measure(state, "GFLOP/s", 4 * p.products,
          [&] { body<targets::attention, Original>()(p.qkv, p.bounds, p.shape, p.out, p.lse); });
}

template <bool Original>
void attention_backward(benchmark::State& state) {
  Packed p(state);
  mgfl::kernels::attention(p.qkv, p.bounds, p.shape, p.out, p.lse);
  measure(state, "GFLOP/s", 10 * p.products, [&] {
    body<targets::attention_backward, Original>()(p.dout, p.qkv, p.out, p.lse, p.bounds, p.shape, p.dqkv);
  });
}

template <bool Original>
void linear(benchmark::State& state) {
  const std::int64_t rows = state.range(1), out = state.range(2), in = state.range(3);
  const Tensor x = random({rows, in}, dtype_of(state)), w = random({out, in}, dtype_of(state));
  Tensor y = mgfl::zeros({rows, out}, dtype_of(state));
  measure(state, "GFLOP/s", 2.0 * static_cast<double>(rows * out * in),
          [&] { body<targets::linear, Original>()(x, w, Tensor(), y); });
}

template <bool Original>
void linear_input_grad(benchmark::State& state) {
  const std::int64_t rows = state.range(1), out = state.range(2), in = state.range(3);
  const Tensor dy = random({rows, out}, dtype_of(state)), w = random({out, in}, dtype_of(state));
  Tensor dx = mgfl::zeros({rows, in}, dtype_of(state));
  measure(state, "GFLOP/s", 2.0 * static_cast<double>(rows * out * in),
          [&] { body<targets::linear_input_grad, Original>()(dy, w, dx); });
}

template <bool Original>
void linear_weight_grad(benchmark::State& state) {
  const std::int64_t rows = state.range(1), out = state.range(2), in = state.range(3);
  const Tensor dy = random({rows, out}, dtype_of(state)), x = random({rows, in}, dtype_of(state));
  Tensor grad = mgfl::zeros({out, in}, at::kFloat);
  measure(state, "GFLOP/s", 2.0 * static_cast<double>(rows * out * in),
          [&] { body<targets::linear_weight_grad, Original>()(dy, x, grad); });
}

template <bool Original>
void rms_norm(benchmark::State& state) {
  const Tensor x = random({tokens, hidden}, dtype_of(state)),
               residual = random({tokens, hidden}, dtype_of(state));
  const Tensor w = random({hidden}, dtype_of(state));
  Tensor sum = x.clone(), y = x.clone(), rstd = mgfl::zeros({tokens}, at::kFloat);
  measure(state, "GB/s", 4.0 * static_cast<double>(x.nbytes()),
          [&] { body<targets::rms_norm, Original>()(x, residual, w, 1e-5, sum, y, rstd); });
}

template <bool Original>
void rms_norm_backward(benchmark::State& state) {
  const Tensor x = random({tokens, hidden}, dtype_of(state)), dy = x.clone(), residual = x.clone();
  const Tensor w = random({hidden}, dtype_of(state)), rstd = random({tokens}, at::kFloat);
  Tensor dx = x.clone(), grad = mgfl::zeros({hidden}, at::kFloat);
  measure(state, "GB/s", 4.0 * static_cast<double>(x.nbytes()),
          [&] { body<targets::rms_norm_backward, Original>()(dy, x, w, rstd, residual, dx, grad); });
}

template <bool Original>
void rotary(benchmark::State& state) {
  const mgfl::kernels::QkvLayout layout{groups, queries, head_dim};
  Tensor qkv = random({tokens, layout.row_width()}, dtype_of(state)), rstd;
  const Tensor cos = random({tokens, head_dim / 2}, at::kFloat),
               sin = random({tokens, head_dim / 2}, at::kFloat);
  measure(state, "GB/s", 2.0 * static_cast<double>(qkv.nbytes()), [&] {
    body<targets::qk_norm_rotary, Original>()(qkv, Tensor(), Tensor(), 1e-5, cos, sin, layout, qkv, rstd);
  });
}

template <bool Original>
void swiglu(benchmark::State& state) {
  const Tensor gate_up = random({tokens, 2 * ffn}, dtype_of(state));
  Tensor activated = mgfl::zeros({tokens, ffn}, dtype_of(state));
  measure(state, "GB/s", 1.5 * static_cast<double>(gate_up.nbytes()),
          [&] { body<targets::swiglu, Original>()(gate_up, activated); });
}

template <bool Original>
void swiglu_backward(benchmark::State& state) {
  const Tensor gate_up = random({tokens, 2 * ffn}, dtype_of(state)),
               grad = random({tokens, ffn}, dtype_of(state));
  Tensor activated = grad.clone(), d_gate_up = gate_up.clone();
  measure(state, "GB/s", 3.0 * static_cast<double>(gate_up.nbytes()),
          [&] { body<targets::swiglu_backward, Original>()(grad, gate_up, d_gate_up, activated); });
}

Tensor ids() { return random({tokens}, at::kFloat).abs().mul(1000).to(at::kLong); }

template <bool Original>
void embedding_backward(benchmark::State& state) {
  const Tensor dout = random({tokens, hidden}, dtype_of(state)), id = ids();
  Tensor grad = mgfl::zeros({vocabulary, hidden}, at::kFloat);
  measure(state, "GB/s", static_cast<double>(dout.nbytes()) + 8.0 * tokens * hidden,
          [&] { body<targets::embedding_backward, Original>()(id, dout, 0, grad); });
}

template <bool Original>
void vocab_row_statistics(benchmark::State& state) {
  const std::int64_t rows = 256;
  const Tensor logits = random({rows, vocabulary}, dtype_of(state)), label = ids().narrow(0, 0, rows);
  const Tensor scale = mgfl::zeros({rows}, at::kFloat).add(1);
  Tensor a = scale.clone(), b = scale.clone(), c = scale.clone(), d = scale.clone();
  measure(state, "GB/s", static_cast<double>(logits.nbytes()),
          [&] { body<targets::vocab_row_statistics, Original>()(logits, label, scale, 0, a, b, c, d); });
}

template <bool Original>
void vocab_rows_backward(benchmark::State& state) {
  const std::int64_t rows = 256;
  Tensor logits = random({rows, vocabulary}, dtype_of(state));
  const Tensor label = ids().narrow(0, 0, rows), one = mgfl::zeros({rows}, at::kFloat).add(1),
               lse = one.mul(11);
  measure(state, "GB/s", 2.0 * static_cast<double>(logits.nbytes()), [&] {
    body<targets::vocab_rows_backward, Original>()(logits, label, one, 0, lse, one, one, Tensor());
  });
}

template <bool Original>
void bias_grad(benchmark::State& state) {
  const Tensor dy = random({tokens, 2 * ffn}, dtype_of(state));
  Tensor grad = mgfl::zeros({2 * ffn}, at::kFloat);
  measure(state, "GB/s", static_cast<double>(dy.nbytes()),
          [&] { body<targets::bias_grad, Original>()(dy, grad); });
}

template <bool Original>
void adamw_step(benchmark::State& state) {
  const std::int64_t n = 16 << 20;
  Tensor param = random({n}, at::kFloat), m = param.clone(), v = param.abs();
  const Tensor grad = param.clone();
  Tensor model = dtype_of(state) == at::kFloat ? Tensor() : param.to(dtype_of(state));
  const mgfl::kernels::AdamWStep step{1e-3, 0.9, 0.95, 1e-8, 0.1, 5, 0.5};
  measure(state, "GB/s", static_cast<double>(n) * (28 + (model.defined() ? 2 : 0)),
          [&] { body<targets::adamw_step, Original>()(param, grad, m, v, model, step); });
}

#define MGFL_BENCH(name, ...)                                 \
  BENCHMARK_TEMPLATE(name, false) __VA_ARGS__->UseRealTime(); \
  BENCHMARK_TEMPLATE(name, true) __VA_ARGS__->UseRealTime()
#define MGFL_BENCH_DTYPES(name) MGFL_BENCH(name, ->Arg(32)->Arg(16))

MGFL_BENCH(attention, ->Args({32, 512, 64})
                          ->Args({16, 512, 64})
                          ->Args({16, 2048, 64})
                          ->Args({16, 2048, 128})
                          ->Args({32, 2048, 128}));
MGFL_BENCH(attention_backward, ->Args({32, 512, 64})
                                   ->Args({16, 512, 64})
                                   ->Args({16, 2048, 64})
                                   ->Args({16, 2048, 128})
                                   ->Args({32, 2048, 128}));
// One shape at a time, so that both implementations meet the same machine.
#define MGFL_BENCH_LINEAR(...)                              \
  MGFL_BENCH(linear, ->Args({32, __VA_ARGS__}));            \
  MGFL_BENCH(linear_input_grad, ->Args({32, __VA_ARGS__})); \
  MGFL_BENCH(linear_weight_grad, ->Args({32, __VA_ARGS__})->Args({16, __VA_ARGS__}))
MGFL_BENCH_LINEAR(tokens, 960, hidden);
MGFL_BENCH_LINEAR(tokens, hidden, hidden);
MGFL_BENCH_LINEAR(tokens, 2 * ffn, hidden);
MGFL_BENCH_LINEAR(tokens, hidden, ffn);
MGFL_BENCH_LINEAR(tokens / 2, vocabulary, hidden);
MGFL_BENCH_DTYPES(rms_norm);
MGFL_BENCH_DTYPES(rms_norm_backward);
MGFL_BENCH_DTYPES(rotary);
MGFL_BENCH_DTYPES(swiglu);
MGFL_BENCH_DTYPES(swiglu_backward);
MGFL_BENCH_DTYPES(embedding_backward);
MGFL_BENCH_DTYPES(vocab_row_statistics);
MGFL_BENCH_DTYPES(vocab_rows_backward);
MGFL_BENCH_DTYPES(bias_grad);
MGFL_BENCH_DTYPES(adamw_step);

}  // namespace

int main(int argc, char** argv) {
  const char* threads = std::getenv("MGFL_BENCH_THREADS");
  mgfl::set_num_threads(threads ? std::atoi(threads) : 2);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
