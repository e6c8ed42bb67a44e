// Row statistics and gradient of the vocabulary's logits: a row stays in the second-level cache between its
// loops.
#include "vendors/x86/simd/vector.h"

namespace mgfl::x86 {

template <class D>
void vocab_row_statistics(const D* logits, const std::int64_t* labels, const float* scale,
                          std::int64_t first_column, float* largest, float* sum_exp, float* sum_exp_z,
                          float* predicted, std::int64_t rows, std::int64_t columns, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t r = 0; r < rows; ++r) {
    const D* row = logits + r * columns;
    const F factor = set1(scale[r]);
    // Four accumulators: enough to hide their latency, and shorter sums round less.
    constexpr int ways = 4;
    const std::int64_t whole = columns / (ways * W) * (ways * W);
    const F lowest = set1(-__builtin_inff());
    F top[ways] = {lowest, lowest, lowest, lowest};
    for (std::int64_t i = 0; i < whole; i += ways * W)
      for (int k = 0; k < ways; ++k) top[k] = max(top[k], mul(load(row + i + k * W), factor));
    for (std::int64_t i = whole; i < columns; i += W) {
      const std::int64_t n = lesser<std::int64_t>(W, columns - i);
      float z[W];
      store(z, lowest);
      if (n == W) {
        store(z, mul(load(row + i), factor));
      } else {
        store(z, mul(load(row + i, n), factor), n);
      }
      top[0] = max(top[0], load(z));
    }
    const float m = largest_of_lanes(max(max(top[0], top[1]), max(top[2], top[3])));
    const F most = set1(m);

    const F zero = set1(0.0f);
    F sums[ways] = {zero, zero, zero, zero}, weighted[ways] = {zero, zero, zero, zero};
    const auto term = [&](int k, F logit) {
      const F z =
          max(set1(-105.0f), fms(logit, factor, most));  // finite, so that e^z z is 0 where z is -infinity
      const F e = exp(z);
      sums[k] = add(sums[k], e);
      weighted[k] = fma(e, z, weighted[k]);
    };
    for (std::int64_t i = 0; i < whole; i += ways * W)
      for (int k = 0; k < ways; ++k) term(k, load(row + i + k * W));
    for (std::int64_t i = whole; i < columns; i += W) {
      const std::int64_t n = lesser<std::int64_t>(W, columns - i);
      if (n == W) {
        term(0, load(row + i));
        continue;
      }
      const F z = max(set1(-105.0f), fms(load(row + i, n), factor, most));
      const F e = exp(z);
      float parts[2][W] = {};
      store(parts[0], e, n);
      store(parts[1], mul(e, z), n);
      sums[1] = add(sums[1], load(parts[0]));
      weighted[1] = add(weighted[1], load(parts[1]));
    }
    largest[r] = m;
    sum_exp[r] = sum_of_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
    sum_exp_z[r] = sum_of_lanes(add(add(weighted[0], weighted[1]), add(weighted[2], weighted[3])));
    const std::int64_t label = labels[r] - first_column;
    float z[W] = {};
    if (label >= 0 && label < columns) store(z, mul(load(row + label, 1), factor));
    predicted[r] = z[0];
  }
}

template <class D>
void vocab_rows_backward(D* logits, const std::int64_t* labels, const float* scale, std::int64_t first_column,
                         const float* lse, const float* entropy, const float* d_log_prob,
                         const float* d_entropy, std::int64_t rows, std::int64_t columns, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t r = 0; r < rows; ++r) {
    D* row = logits + r * columns;
    const F factor = set1(scale[r]), normalizer = set1(lse[r]);
    const F d_log = set1(scale[r] * d_log_prob[r]);
    const bool with_entropy = d_entropy && d_entropy[r] != 0.0f;
    const F d_ent = set1(with_entropy ? scale[r] * d_entropy[r] : 0.0f),
            ent = set1(with_entropy ? entropy[r] : 0.0f);
    const std::int64_t label = labels[r] - first_column;
    const bool held = label >= 0 && label < columns;

    // -gradient of every column that is not the label
    const auto gradient = [&](F logit) {
      const F log_p = max(set1(-105.0f), fms(logit, factor, normalizer));
      const F p = exp(log_p);
      F g = mul(d_log, p);
      if (with_entropy) g = fma(mul(d_ent, p), add(log_p, ent), g);
      return g;
    };
    F at_label = set1(0.0f);
    if (held) at_label = sub(d_log, gradient(load(static_cast<const D*>(row + label), 1)));
    for_lanes(columns, [&](std::int64_t i, auto lanes) {
      lanes(row + i, sub(set1(0.0f), gradient(lanes(static_cast<const D*>(row + i)))));
    });
    if (held) store(row + label, at_label, 1);
  }
}

template void vocab_row_statistics(const float*, const std::int64_t*, const float*, std::int64_t, float*,
                                   float*, float*, float*, std::int64_t, std::int64_t, int);
template void vocab_row_statistics(const bf16*, const std::int64_t*, const float*, std::int64_t, float*,
                                   float*, float*, float*, std::int64_t, std::int64_t, int);
template void vocab_rows_backward(float*, const std::int64_t*, const float*, std::int64_t, const float*,
                                  const float*, const float*, const float*, std::int64_t, std::int64_t, int);
template void vocab_rows_backward(bf16*, const std::int64_t*, const float*, std::int64_t, const float*,
                                  const float*, const float*, const float*, std::int64_t, std::int64_t, int);

}  // namespace mgfl::x86
