/// Register-tiled products for attention. Operands are made of 32-bit units along the summed dimension: one
/// float, or two bf16 that vdpbf16ps multiplies and adds at once; so one loop serves both.
///
/// The left operand is broadcast unit by unit (any strides), the right one is read in whole registers: unit k
/// of every column lies in one row.
#pragma once

#include "vendors/x86/simd/vector.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

namespace mgfl::x86 {
namespace {

#if defined(__AVX512F__)
constexpr int tile_rows = 8, tile_registers = 2;  // 16 accumulators: twice the latency of a product
#else
constexpr int tile_rows = 4, tile_registers = 2;
#endif
constexpr std::int64_t tile_columns = tile_registers * W;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }
constexpr std::int64_t round_down(std::int64_t n, std::int64_t step) { return n / step * step; }

/// Units of one float.
struct Single {
  using unit = float;
  static constexpr std::int64_t depth = 1;

  static MGFL_INLINE F broadcast(const unit* a) { return set1(*a); }
  static MGFL_INLINE F columns(const unit* b) { return load(b); }
  static MGFL_INLINE F multiply_add(F a, F b, F c) { return fma(a, b, c); }

  /// Copies n elements to units.
  template <class D>
  static MGFL_INLINE void copy(const D* from, std::int64_t n, unit* to) {
    for (std::int64_t i = 0; i < n; i += W) store(to + i, load(from + i));
  }
  /// One row of a tile, columns along the units.
  static MGFL_INLINE void store_row(unit* to, const F (&row)[tile_registers]) {
    for (int n = 0; n < tile_registers; ++n) store(to + n * W, row[n]);
  }
  /// Two rows of one register each, rows along the units.
  static MGFL_INLINE void store_rows(unit* to, std::int64_t stride, F even, F odd) {
    store(to, even);
    store(to + stride, odd);
  }
  /// rows x columns elements -> units along the rows; here nothing is to do, and the result is the source.
  static MGFL_INLINE const unit* interleave(const unit* from, std::int64_t, std::int64_t, unit*) {
    return from;
  }
};

#if defined(__AVX512BF16__)

/// Units of two bf16.
struct Pair {
  using unit = std::uint32_t;
  static constexpr std::int64_t depth = 2;

  static MGFL_INLINE F broadcast(const unit* a) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*a)));
  }
  static MGFL_INLINE F columns(const unit* b) { return _mm512_loadu_ps(b); }
  static MGFL_INLINE F multiply_add(F a, F b, F c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }

  static MGFL_INLINE void copy(const bf16* from, std::int64_t n, unit* to) {
    for (std::int64_t i = 0; i < n; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
  static MGFL_INLINE void store_row(unit* to, const F (&row)[tile_registers]) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(row[1], row[0]));
  }
  static MGFL_INLINE void store_rows(unit* to, std::int64_t, F even, F odd) {
    alignas(64) static constexpr std::uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                            21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                            11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(order), halves));
  }
  static MGFL_INLINE const unit* interleave(const unit* from, std::int64_t rows, std::int64_t columns,
                                            unit* to) {
    const auto wide = [&](std::int64_t row, std::int64_t column) {
      const unit* at = from + (row * columns + column) / 2;
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    };
    for (std::int64_t row = 0; row < rows; row += 2)
      for (std::int64_t column = 0; column < columns; column += 16)
        _mm512_storeu_si512(to + row / 2 * columns + column,
                            _mm512_or_si512(wide(row, column), _mm512_slli_epi32(wide(row + 1, column), 16)));
    return to;
  }
};

template <class D>
struct product_of {
  using type = Single;
};
template <>
struct product_of<bf16> {
  using type = Pair;
};

#else

template <class D>
struct product_of {
  using type = Single;
};

#endif

/// sums[m][n] += sum over k < depth of a[m a_row + k a_unit] b[k b_unit + n W ...].
template <class P, int N>
MGFL_INLINE void multiply(F (&sums)[tile_rows][N], const typename P::unit* a, std::int64_t a_row,
                          std::int64_t a_unit, const typename P::unit* b, std::int64_t b_unit,
                          std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; ++k, a += a_unit, b += b_unit) {
    F columns[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) columns[n] = P::columns(b + n * W);
#pragma GCC unroll 8
    for (int m = 0; m < tile_rows; ++m) {
      const F left = P::broadcast(a + m * a_row);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sums[m][n] = P::multiply_add(left, columns[n], sums[m][n]);
    }
  }
}

template <int N>
MGFL_INLINE void clear(F (&sums)[tile_rows][N]) {
#pragma GCC unroll 8
  for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) sums[m][n] = set1(0.0f);
}

/// c[tile_rows][columns] = start(c) + a b, finished by `finish(row, column, sum)`; `start(row, column)` gives
/// each register.
template <class P, int N, class Start, class Finish>
MGFL_INLINE void product_tile(const typename P::unit* a, std::int64_t a_row, std::int64_t a_unit,
                              const typename P::unit* b, std::int64_t b_unit, std::int64_t depth,
                              std::int64_t column, Start start, Finish finish) {
  F sums[tile_rows][N];
#pragma GCC unroll 8
  for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) sums[m][n] = start(m, column + n * W);
  multiply<P, N>(sums, a, a_row, a_unit, b + column, b_unit, depth);
#pragma GCC unroll 8
  for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) finish(m, column + n * W, sums[m][n]);
}
template <class P, class Start, class Finish>
MGFL_INLINE void product_rows(const typename P::unit* a, std::int64_t a_row, std::int64_t a_unit,
                              const typename P::unit* b, std::int64_t b_unit, std::int64_t depth,
                              std::int64_t columns, Start start, Finish finish) {
  std::int64_t column = 0;
  for (; column + tile_columns <= columns; column += tile_columns)
    product_tile<P, tile_registers>(a, a_row, a_unit, b, b_unit, depth, column, start, finish);
  for (; column < columns; column += W)
    product_tile<P, 1>(a, a_row, a_unit, b, b_unit, depth, column, start, finish);
}

#if defined(__AVX512F__)
/// block[column][row] = block[row][column]. Butterflies: step s exchanges bit s of the row with bit s of the
/// column.
MGFL_INLINE void transpose(F (&block)[16]) {
  static_assert(W == 16);
  alignas(64) static constexpr int low[4][16] = {{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30},
                                                 {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29},
                                                 {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27},
                                                 {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}};
  alignas(64) static constexpr int high[4][16] = {
      {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31},
      {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31},
      {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31},
      {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}};
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
    const __m512i first = _mm512_load_si512(low[step]), second = _mm512_load_si512(high[step]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i & (1 << step)) continue;
      const int other = i | (1 << step);
      const F a = block[i], b = block[other];
      block[i] = _mm512_permutex2var_ps(a, first, b);
      block[other] = _mm512_permutex2var_ps(a, second, b);
    }
  }
}
#endif

/// to[column][row] = from[row][column]; rows and columns are multiples of W or, for the columns, of 8.
template <class Unit>
MGFL_INLINE void transpose(const Unit* from, std::int64_t rows, std::int64_t columns, Unit* to) {
#if defined(__AVX512F__)
  for (std::int64_t row = 0; row < rows; row += 16)
    for (std::int64_t column = 0; column < columns; column += 16) {
      const std::int64_t width = lesser<std::int64_t>(16, columns - column);
      const __mmask16 present = static_cast<__mmask16>((1u << width) - 1u);
      F block[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        block[i] = _mm512_maskz_loadu_ps(present, from + (row + i) * columns + column);
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        if (i < width) _mm512_storeu_ps(to + (column + i) * rows + row, block[i]);
    }
#else
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      to[column * rows + row] = from[row * columns + column];
#endif
}

}  // namespace
}  // namespace mgfl::x86

#pragma GCC diagnostic pop
