// Per-head RMS norm and half-rotation of q and k, forward and backward, one head at a time.
#include "vendors/x86/simd/vector.h"

namespace mgfl::x86 {
namespace {

/// out = [a c - b s, b c + a s] for the halves a, b of the first 2 half lanes, the rest copied; out may be x.
template <class In, class Out>
MGFL_INLINE void rotate(const In* x, const float* c, const float* s, std::int64_t half, std::int64_t head_dim,
                        Out* out) {
  for_lanes(half, [&](std::int64_t i, auto lanes) {
    const F a = lanes(x + i), b = lanes(x + half + i), cosine = lanes(c + i), sine = lanes(s + i);
    lanes(out + i, fms(a, cosine, mul(b, sine)));
    lanes(out + half + i, fma(b, cosine, mul(a, sine)));
  });
  for_lanes(head_dim - 2 * half,
            [&](std::int64_t i, auto lanes) { lanes(out + 2 * half + i, lanes(x + 2 * half + i)); });
}

/// The inverse of rotate.
template <class In, class Out>
MGFL_INLINE void rotate_back(const In* x, const float* c, const float* s, std::int64_t half,
                             std::int64_t head_dim, Out* out) {
  for_lanes(half, [&](std::int64_t i, auto lanes) {
    const F a = lanes(x + i), b = lanes(x + half + i), cosine = lanes(c + i), sine = lanes(s + i);
    lanes(out + i, fma(a, cosine, mul(b, sine)));
    lanes(out + half + i, fms(b, cosine, mul(a, sine)));
  });
  for_lanes(head_dim - 2 * half,
            [&](std::int64_t i, auto lanes) { lanes(out + 2 * half + i, lanes(x + 2 * half + i)); });
}

}  // namespace

template <class D>
void qk_norm_rotary(const D* qkv, const D* q_norm, const D* k_norm, float eps, const float* cos,
                    const float* sin, Heads heads, D* out, float* rstd, std::int64_t tokens, int threads) {
  const std::int64_t d = heads.head_dim, half = heads.half, rotated = heads.queries_per_group + 1;
  const std::int64_t width = heads.groups * (rotated + 1) * d;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* c = cos + t * half;
    const float* s = sin + t * half;
    for (std::int64_t group = 0; group < heads.groups; ++group) {
      const D* in = qkv + t * width + group * (rotated + 1) * d;
      D* to = out + (in - qkv);
      for (std::int64_t head = 0; head < rotated; ++head, in += d, to += d) {
        const D* w = head + 1 < rotated ? q_norm : k_norm;
        if (!w) {
          rotate(in, c, s, half, d, to);
          continue;
        }
        F squares = set1(0.0f);
        for_lanes(d, [&](std::int64_t i, auto lanes) {
          const F v = lanes(in + i);
          squares = fma(v, v, squares);
        });
        const float r = 1.0f / __builtin_sqrtf(sum_of_lanes(squares) / static_cast<float>(d) + eps);
        rstd[(t * heads.groups + group) * rotated + head] = r;
        const F scale = set1(r);
        float normed[largest_normed_head];
        for_lanes(d, [&](std::int64_t i, auto lanes) {
          lanes(normed + i, mul(mul(lanes(in + i), scale), lanes(w + i)));
        });
        rotate(static_cast<const float*>(normed), c, s, half, d, to);
      }
      if (to != in) for_lanes(d, [&](std::int64_t i, auto lanes) { lanes(to + i, lanes(in + i)); });
    }
  }
}

template <class D>
void qk_norm_rotary_backward(D* dqkv, const D* qkv, const D* q_norm, const D* k_norm, const float* cos,
                             const float* sin, const float* rstd, Heads heads, float* q_norm_grad,
                             float* k_norm_grad, std::int64_t tokens, int threads) {
  const std::int64_t d = heads.head_dim, half = heads.half, rotated = heads.queries_per_group + 1;
  const std::int64_t width = heads.groups * (rotated + 1) * d;
  const Slices slices = slices_of(tokens);
  const bool norms = q_norm || k_norm;
  // Per slice: gradient of q_norm, then of k_norm.
  float* partial =
      norms ? static_cast<float*>(scratch(sizeof(float) * static_cast<std::size_t>(slices.count * 2 * d)))
            : nullptr;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t slice = 0; slice < slices.count; ++slice) {
    float* mine = norms ? partial + slice * 2 * d : nullptr;
    if (norms) for_lanes(2 * d, [&](std::int64_t i, auto lanes) { lanes(mine + i, set1(0.0f)); });
    const std::int64_t end = lesser(tokens, (slice + 1) * slices.rows);
    for (std::int64_t t = slice * slices.rows; t < end; ++t) {
      const float* c = cos + t * half;
      const float* s = sin + t * half;
      for (std::int64_t group = 0; group < heads.groups; ++group) {
        D* grad = dqkv + t * width + group * (rotated + 1) * d;
        for (std::int64_t head = 0; head < rotated; ++head, grad += d) {
          const bool is_query = head + 1 < rotated;
          const D* w = is_query ? q_norm : k_norm;
          if (!w) {
            rotate_back(static_cast<const D*>(grad), c, s, half, d, grad);
            continue;
          }
          float back[largest_normed_head];
          rotate_back(static_cast<const D*>(grad), c, s, half, d, back);
          const float* dy = back;
          const D* x = qkv + (grad - dqkv);
          float* w_grad = is_query ? mine : mine + d;
          const F scale = set1(rstd[(t * heads.groups + group) * rotated + head]);
          F dot = set1(0.0f);
          for_lanes(d, [&](std::int64_t i, auto lanes) {
            const F normed = mul(lanes(x + i), scale), g = lanes(dy + i);
            dot = fma(mul(g, lanes(w + i)), normed, dot);
            lanes(w_grad + i, fma(g, normed, lanes(static_cast<const float*>(w_grad + i))));
          });
          const F mean = set1(sum_of_lanes(dot) / static_cast<float>(d));
          for_lanes(d, [&](std::int64_t i, auto lanes) {
            const F normed = mul(lanes(x + i), scale);
            lanes(grad + i, mul(scale, fnma(normed, mean, mul(lanes(dy + i), lanes(w + i)))));
          });
        }
      }
    }
  }
  const auto accumulate = [&](float* total, const float* first) {
    for (std::int64_t slice = 0; slice < slices.count; ++slice)
      for (std::int64_t i = 0; i < d; ++i) total[i] += first[slice * 2 * d + i];
  };
  if (q_norm) accumulate(q_norm_grad, partial);
  if (k_norm) accumulate(k_norm_grad, partial + d);
}

template void qk_norm_rotary(const float*, const float*, const float*, float, const float*, const float*,
                             Heads, float*, float*, std::int64_t, int);
template void qk_norm_rotary(const bf16*, const bf16*, const bf16*, float, const float*, const float*, Heads,
                             bf16*, float*, std::int64_t, int);
template void qk_norm_rotary_backward(float*, const float*, const float*, const float*, const float*,
                                      const float*, const float*, Heads, float*, float*, std::int64_t, int);
template void qk_norm_rotary_backward(bf16*, const bf16*, const bf16*, const bf16*, const float*,
                                      const float*, const float*, Heads, float*, float*, std::int64_t, int);

}  // namespace mgfl::x86
