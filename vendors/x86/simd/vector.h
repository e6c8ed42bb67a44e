/// One register of floats (`F`, W lanes) for AVX-512 or AVX2, with loads and stores that convert from and to
/// bf16.
///
/// Only files in simd/ include this; everything is local to the unit that includes it, see simd.h.
#pragma once

#include <immintrin.h>

#include "vendors/x86/simd/simd.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

namespace mgfl::x86 {
namespace {

#define MGFL_INLINE inline __attribute__((always_inline))

template <class T>
MGFL_INLINE T lesser(T a, T b) {
  return b < a ? b : a;
}
template <class T>
MGFL_INLINE T greater(T a, T b) {
  return a < b ? b : a;
}

#if defined(__AVX512F__)

constexpr int W = 16;
using F = __m512;

MGFL_INLINE F set1(float x) { return _mm512_set1_ps(x); }
MGFL_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
MGFL_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
MGFL_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
MGFL_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
MGFL_INLINE F sqrt(F a) { return _mm512_sqrt_ps(a); }
/// a b + c, a b - c, c - a b
MGFL_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
MGFL_INLINE F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
MGFL_INLINE F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
/// Where either is NaN, the second.
MGFL_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
MGFL_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
MGFL_INLINE F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// a 2^n for integral n
MGFL_INLINE F scale_by_power(F a, F n) { return _mm512_scalef_ps(a, n); }
/// Lanes of a where x >= y, else of b.
MGFL_INLINE F where_ge(F x, F y, F a, F b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), b, a);
}

MGFL_INLINE __mmask16 first_lanes(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
MGFL_INLINE F widen(__m256i b) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

#if defined(__AVX512BF16__)
MGFL_INLINE __m256i narrow(F v) { return (__m256i)_mm512_cvtneps_pbh(v); }
#else
MGFL_INLINE __m256i narrow(F v) {
  const __m512i x = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}
#endif

MGFL_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
MGFL_INLINE F load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
MGFL_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
MGFL_INLINE void store(bf16* p, F v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v)); }
/// The first n < W lanes; the others load as 0.
MGFL_INLINE F load(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
MGFL_INLINE F load(const bf16* p, std::int64_t n) {
  return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
MGFL_INLINE void store(float* p, F v, std::int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
MGFL_INLINE void store(bf16* p, F v, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(v));
}

MGFL_INLINE float sum_of_lanes(F v) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#else

constexpr int W = 8;
using F = __m256;

MGFL_INLINE F set1(float x) { return _mm256_set1_ps(x); }
MGFL_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
MGFL_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
MGFL_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
MGFL_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
MGFL_INLINE F sqrt(F a) { return _mm256_sqrt_ps(a); }
/// a b + c, a b - c, c - a b
MGFL_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
MGFL_INLINE F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
MGFL_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
/// Where either is NaN, the second.
MGFL_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
MGFL_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
MGFL_INLINE F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// a 2^n for integral n; two steps, since 2^n alone may have no normal representation.
MGFL_INLINE F scale_by_power(F a, F n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(a, power(first)), power(second));
}
/// Lanes of a where x >= y, else of b.
MGFL_INLINE F where_ge(F x, F y, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_GE_OQ)); }

MGFL_INLINE F widen(__m128i b) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}
MGFL_INLINE __m128i narrow(F v) {
  const __m256i x = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

MGFL_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
MGFL_INLINE F load(const bf16* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
MGFL_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
MGFL_INLINE void store(bf16* p, F v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v)); }
/// The first n < W lanes; the others load as 0.
template <class D>
MGFL_INLINE F load(const D* p, std::int64_t n) {
  D lanes[W] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <class D>
MGFL_INLINE void store(D* p, F v, std::int64_t n) {
  D lanes[W];
  store(lanes, v);
  for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

MGFL_INLINE float sum_of_lanes(F v) {
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#endif

MGFL_INLINE float largest_of_lanes(F v) {
  float lanes[W];
  store(lanes, v);
  float largest = lanes[0];
  for (int i = 1; i < W; ++i) largest = greater(largest, lanes[i]);
  return largest;
}

/// Calls body(i, part) for i = 0, W, 2W ...; `part` loads and stores W lanes, or fewer at the end.
struct Whole {
  template <class D>
  MGFL_INLINE F operator()(const D* p) const {
    return load(p);
  }
  template <class D>
  MGFL_INLINE void operator()(D* p, F v) const {
    store(p, v);
  }
};
struct Part {
  std::int64_t n;
  template <class D>
  MGFL_INLINE F operator()(const D* p) const {
    return load(p, n);
  }
  template <class D>
  MGFL_INLINE void operator()(D* p, F v) const {
    store(p, v, n);
  }
};
template <class Body>
MGFL_INLINE void for_lanes(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + W <= n; i += W) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

/// 2^r on [-1/2, 1/2], off by at most 5e-9 before rounding: interpolated at the Chebyshev nodes.
MGFL_INLINE F power_of_fraction(F r) {
  F p = set1(1.54531629387e-4f);
  p = fma(p, r, set1(1.33908633646e-3f));
  p = fma(p, r, set1(9.61808255730e-3f));
  p = fma(p, r, set1(5.55035711422e-2f));
  p = fma(p, r, set1(2.40226507606e-1f));
  p = fma(p, r, set1(6.93147188026e-1f));
  return fma(p, r, set1(1.0f));
}

/// 2^x; 0 below 2^-150, NaN for NaN.
MGFL_INLINE F exp2(F x) {
  x = max(set1(-151.0f), x);
  const F n = round(x);
  return scale_by_power(power_of_fraction(sub(x, n)), n);
}

/// e^x to about one unit in the last place; 0 below -104, infinite above 88.7, NaN for NaN.
MGFL_INLINE F exp(F x) {
  x = min(set1(89.0f), max(set1(-105.0f), x));
  const F n = round(mul(x, set1(1.44269504089f)));
  F r = fnma(n, set1(0.693145751953125f), x);
  r = fnma(n, set1(1.42860682030941723212e-6f), r);
  F p = set1(1.39336410265e-3f);  // like power_of_fraction
  p = fma(p, r, set1(8.36914849087e-3f));
  p = fma(p, r, set1(4.16664650062e-2f));
  p = fma(p, r, set1(1.66665052604e-1f));
  p = fma(p, r, set1(5.00000001346e-1f));
  p = fma(p, r, set1(1.00000001077f));
  p = fma(p, r, set1(1.0f));
  return scale_by_power(p, n);
}

/// 1 / (1 + e^-x)
MGFL_INLINE F sigmoid(F x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

/// How many slices a reduction over rows is cut into: a number that depends on the shape alone, so that sums
/// come out the same for every number of threads.
struct Slices {
  std::int64_t count, rows;
};
MGFL_INLINE Slices slices_of(std::int64_t rows) {
  const std::int64_t per_slice = greater<std::int64_t>(16, (rows + 63) / 64);
  return {(rows + per_slice - 1) / per_slice, per_slice};
}

}  // namespace
}  // namespace mgfl::x86

#pragma GCC diagnostic pop
