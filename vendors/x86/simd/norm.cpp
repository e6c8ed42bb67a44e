// RMS norm, forward and backward: one pass over memory, a row stays in the first-level cache between its two
// loops.
#include "vendors/x86/simd/vector.h"

namespace mgfl::x86 {

template <class D>
void rms_norm(const D* x, const D* residual, const D* w, float eps, D* sum, D* y, float* rstd,
              std::int64_t tokens, std::int64_t hidden, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t t = 0; t < tokens; ++t) {
    const D* row = x + t * hidden;
    F squares = set1(0.0f);
    if (residual) {
      const D* other = residual + t * hidden;
      D* out = sum + t * hidden;
      for_lanes(hidden, [&](std::int64_t i, auto lanes) {
        lanes(out + i, add(lanes(row + i), lanes(other + i)));
        const F rounded = lanes(static_cast<const D*>(out + i));
        squares = fma(rounded, rounded, squares);
      });
      row = out;
    } else {
      for_lanes(hidden, [&](std::int64_t i, auto lanes) {
        const F v = lanes(row + i);
        squares = fma(v, v, squares);
      });
    }
    const float r = 1.0f / __builtin_sqrtf(sum_of_lanes(squares) / static_cast<float>(hidden) + eps);
    rstd[t] = r;
    const F scale = set1(r);
    D* out = y + t * hidden;
    for_lanes(hidden, [&](std::int64_t i, auto lanes) {
      lanes(out + i, mul(mul(lanes(row + i), scale), lanes(w + i)));
    });
  }
}

template <class D>
void rms_norm_backward(const D* dy, const D* x, const D* w, const float* rstd, const D* residual_grad, D* dx,
                       float* w_grad, std::int64_t tokens, std::int64_t hidden, int threads) {
  const Slices slices = slices_of(tokens);
  float* partial =
      static_cast<float*>(scratch(sizeof(float) * static_cast<std::size_t>(slices.count * hidden)));
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t slice = 0; slice < slices.count; ++slice) {
      float* mine = partial + slice * hidden;
      for_lanes(hidden, [&](std::int64_t i, auto lanes) { lanes(mine + i, set1(0.0f)); });
      const std::int64_t end = lesser(tokens, (slice + 1) * slices.rows);
      for (std::int64_t t = slice * slices.rows; t < end; ++t) {
        const D* dy_row = dy + t * hidden;
        const D* x_row = x + t * hidden;
        const F scale = set1(rstd[t]);
        F dot = set1(0.0f);
        for_lanes(hidden, [&](std::int64_t i, auto lanes) {
          const F normed = mul(lanes(x_row + i), scale);
          const F d = lanes(dy_row + i);
          dot = fma(mul(d, lanes(w + i)), normed, dot);
          lanes(mine + i, fma(d, normed, lanes(static_cast<const float*>(mine + i))));
        });
        const F mean = set1(sum_of_lanes(dot) / static_cast<float>(hidden));
        D* dx_row = dx + t * hidden;
        const D* residual_row = residual_grad ? residual_grad + t * hidden : nullptr;
        for_lanes(hidden, [&](std::int64_t i, auto lanes) {
          const F normed = mul(lanes(x_row + i), scale);
          F d = mul(scale, fnma(normed, mean, mul(lanes(dy_row + i), lanes(w + i))));
          if (residual_row) d = add(d, lanes(residual_row + i));
          lanes(dx_row + i, d);
        });
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t block = 0; block < (hidden + W - 1) / W; ++block) {
      const std::int64_t i = block * W;
      for_lanes(lesser<std::int64_t>(W, hidden - i), [&](std::int64_t, auto lanes) {
        F total = set1(0.0f);
        for (std::int64_t slice = 0; slice < slices.count; ++slice)
          total = add(total, lanes(static_cast<const float*>(partial + slice * hidden + i)));
        lanes(w_grad + i, add(lanes(static_cast<const float*>(w_grad + i)), total));
      });
    }
  }
}

template void rms_norm(const float*, const float*, const float*, float, float*, float*, float*, std::int64_t,
                       std::int64_t, int);
template void rms_norm(const bf16*, const bf16*, const bf16*, float, bf16*, bf16*, float*, std::int64_t,
                       std::int64_t, int);
template void rms_norm_backward(const float*, const float*, const float*, const float*, const float*, float*,
                                float*, std::int64_t, std::int64_t, int);
template void rms_norm_backward(const bf16*, const bf16*, const bf16*, const float*, const bf16*, bf16*,
                                float*, std::int64_t, std::int64_t, int);

}  // namespace mgfl::x86
