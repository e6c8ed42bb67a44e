// SwiGLU, bias gradient, embedding gradient and AdamW: bound by memory, one pass each.
#include "vendors/x86/simd/vector.h"

namespace mgfl::x86 {

template <class D>
void swiglu(const D* gate_up, D* activated, std::int64_t tokens, std::int64_t ffn, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t t = 0; t < tokens; ++t) {
    const D* gate = gate_up + t * 2 * ffn;
    const D* up = gate + ffn;
    D* out = activated + t * ffn;
    for_lanes(ffn, [&](std::int64_t i, auto lanes) {
      const F g = lanes(gate + i);
      lanes(out + i, mul(mul(g, sigmoid(g)), lanes(up + i)));
    });
  }
}

template <class D>
void swiglu_backward(const D* d_activated, const D* gate_up, D* d_gate_up, D* activated, std::int64_t tokens,
                     std::int64_t ffn, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t t = 0; t < tokens; ++t) {
    const D* gate = gate_up + t * 2 * ffn;
    const D* up = gate + ffn;
    const D* grad = d_activated + t * ffn;
    D* d_gate = d_gate_up + t * 2 * ffn;
    D* d_up = d_gate + ffn;
    D* out = activated + t * ffn;
    for_lanes(ffn, [&](std::int64_t i, auto lanes) {
      const F g = lanes(gate + i), u = lanes(up + i), d = lanes(grad + i);
      const F sigma = sigmoid(g);
      const F silu = mul(g, sigma);
      const F slope = fma(silu, sub(set1(1.0f), sigma), sigma);
      lanes(d_gate + i, mul(mul(d, u), slope));
      lanes(d_up + i, mul(d, silu));
      lanes(out + i, mul(silu, u));
    });
  }
}

template <class D>
void bias_grad(const D* dy, float* main_grad, std::int64_t rows, std::int64_t columns, int threads) {
  constexpr std::int64_t stripe = 8 * W, block = 128;  // sums of 128 rows first: smaller rounding errors
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t first = 0; first < columns; first += stripe) {
    const std::int64_t width = lesser(stripe, columns - first);
    float total[stripe] = {};
    for (std::int64_t begin = 0; begin < rows; begin += block) {
      float part[stripe] = {};
      const std::int64_t end = lesser(rows, begin + block);
      for (std::int64_t row = begin; row < end; ++row) {
        const D* from = dy + row * columns + first;
        for_lanes(width, [&](std::int64_t i, auto lanes) {
          lanes(part + i, add(lanes(static_cast<const float*>(part + i)), lanes(from + i)));
        });
      }
      for (std::int64_t i = 0; i < stripe; ++i) total[i] += part[i];
    }
    for (std::int64_t i = 0; i < width; ++i) main_grad[first + i] += total[i];
  }
}

template <class D>
void embedding_backward(const std::int64_t* ids, const D* dout, std::int64_t first_row, std::int64_t rows,
                        float* main_grad, std::int64_t tokens, std::int64_t hidden, int threads) {
  // Each thread owns a range of columns and adds the tokens in order.
  const std::int64_t blocks = (hidden + W - 1) / W;
  const std::int64_t parts = lesser<std::int64_t>(threads, blocks);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = blocks * part / parts * W;
    const std::int64_t width = lesser(hidden, blocks * (part + 1) / parts * W) - first;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = ids[t] - first_row;
      if (row < 0 || row >= rows) continue;
      float* to = main_grad + row * hidden + first;
      const D* from = dout + t * hidden + first;
      for_lanes(width, [&](std::int64_t i, auto lanes) {
        lanes(to + i, add(lanes(static_cast<const float*>(to + i)), lanes(from + i)));
      });
    }
  }
}

template <class D>
void adamw_step(float* main_param, const float* grad, float* exp_avg, float* exp_avg_sq, D* model_param,
                std::int64_t n, AdamW step, int threads) {
  constexpr std::int64_t block = 4096;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t first = 0; first < n; first += block) {
    for_lanes(lesser(block, n - first), [&](std::int64_t offset, auto lanes) {
      const std::int64_t i = first + offset;
      const F g = mul(lanes(grad + i), set1(step.grad_scale));
      const F m = fma(lanes(static_cast<const float*>(exp_avg + i)), set1(step.beta1),
                      mul(g, set1(step.one_minus_beta1)));
      const F v = fma(lanes(static_cast<const float*>(exp_avg_sq + i)), set1(step.beta2),
                      mul(mul(g, g), set1(step.one_minus_beta2)));
      lanes(exp_avg + i, m);
      lanes(exp_avg_sq + i, v);
      const F denominator = fma(sqrt(v), set1(step.inverse_root_c2), set1(step.eps));
      const F kept = mul(lanes(static_cast<const float*>(main_param + i)), set1(step.keep));
      const F p = fnma(set1(step.step_size), div(m, denominator), kept);
      lanes(main_param + i, p);
      if (model_param) lanes(model_param + i, p);
    });
  }
}

template void swiglu(const float*, float*, std::int64_t, std::int64_t, int);
template void swiglu(const bf16*, bf16*, std::int64_t, std::int64_t, int);
template void swiglu_backward(const float*, const float*, float*, float*, std::int64_t, std::int64_t, int);
template void swiglu_backward(const bf16*, const bf16*, bf16*, bf16*, std::int64_t, std::int64_t, int);
template void bias_grad(const float*, float*, std::int64_t, std::int64_t, int);
template void bias_grad(const bf16*, float*, std::int64_t, std::int64_t, int);
template void embedding_backward(const std::int64_t*, const float*, std::int64_t, std::int64_t, float*,
                                 std::int64_t, std::int64_t, int);
template void embedding_backward(const std::int64_t*, const bf16*, std::int64_t, std::int64_t, float*,
                                 std::int64_t, std::int64_t, int);
template void adamw_step(float*, const float*, float*, float*, float*, std::int64_t, AdamW, int);
template void adamw_step(float*, const float*, float*, float*, bf16*, std::int64_t, AdamW, int);

}  // namespace mgfl::x86
