// bf16 weight gradients with exact fp32 sums: vdpbf16ps on pairs of tokens, added to the main gradient in
// place.
#include "vendors/x86/simd/product.h"

#if defined(__AVX512BF16__)

namespace mgfl::x86 {
namespace {

constexpr std::int64_t block_units =
    128;  // token pairs summed at a time: panels of both operands fit the first-level cache
constexpr std::int64_t block_bytes =
    256 << 10;  // of main gradient that stays in the second-level cache meanwhile

/// Pairs row `even` with the row below it: element i of both in one unit. Columns from `columns` on, and a
/// missing odd row, read as 0.
MGFL_INLINE __m512i pair_up(const bf16* even, std::int64_t stride, std::int64_t columns, bool has_odd) {
  const __mmask16 present = first_lanes(lesser<std::int64_t>(16, columns));
  const auto wide = [&](const bf16* row) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, row));
  };
  const __m512i low = wide(even);
  return has_odd ? _mm512_or_si512(low, _mm512_slli_epi32(wide(even + stride), 16)) : low;
}

/// Token pairs [first, first + count) of `columns` columns -> panels of `width` (8 or 32) columns,
/// [panel][pair][width].
template <int width>
MGFL_INLINE void pack(const bf16* from, std::int64_t stride, std::int64_t tokens, std::int64_t first,
                      std::int64_t count, std::int64_t columns, std::int64_t panel_stride,
                      std::uint32_t* to) {
  const std::int64_t padded = round_up(columns, width);
  constexpr std::int64_t ahead = 16;
  for (std::int64_t pair = 0; pair < count; ++pair) {
    const std::int64_t token = 2 * (first + pair);
    if (token + ahead + 1 < tokens)  // rows lie too far apart for the hardware's own prefetching
      for (std::int64_t column = 0; column < columns; column += 32)
        for (std::int64_t row = token + ahead; row < token + ahead + 2; ++row)
          _mm_prefetch(reinterpret_cast<const char*>(from + row * stride + column), _MM_HINT_T0);
    for (std::int64_t column = 0; column < padded; column += 16) {
      const __m512i units = column < columns ? pair_up(from + token * stride + column, stride,
                                                       columns - column, token + 1 < tokens)
                                             : _mm512_setzero_si512();
      std::uint32_t* at = to + column / width * panel_stride + pair * width + column % width;
      if (width >= 16) {
        _mm512_storeu_si512(at, units);
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_castsi512_si256(units));
        if (column + 8 < padded)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + panel_stride),
                              _mm512_extracti64x4_epi64(units, 1));
      }
    }
  }
}

}  // namespace

void weight_grad(const bf16* dy, const bf16* x, float* main_grad, std::int64_t tokens, std::int64_t out,
                 std::int64_t in, int threads) {
  const std::int64_t pairs = (tokens + 1) / 2, panels = round_up(in, tile_columns) / tile_columns;
  // Rows of the main gradient in one task: few enough for the cache, and tasks that the threads share evenly.
  // No sum depends on it.
  const std::int64_t most = lesser<std::int64_t>(128, greater<std::int64_t>(16, block_bytes / (4 * in)));
  const std::int64_t tasks = round_up((out + most - 1) / most, threads);
  const std::int64_t rows = round_up((out + tasks - 1) / tasks, tile_rows);

  const std::int64_t x_units = round_up(panels * tile_columns * pairs, 16), dy_units = rows * block_units;
  auto* packed_x =
      static_cast<std::uint32_t*>(scratch(4 * static_cast<std::size_t>(x_units + dy_units * threads)));
  int next_member = 0;
#pragma omp parallel num_threads(threads)
  {
    std::uint32_t* packed_dy =
        packed_x + x_units + dy_units * __atomic_fetch_add(&next_member, 1, __ATOMIC_RELAXED);
    // x: [block of pairs][panel][pair][columns of a panel]
#pragma omp for schedule(static)
    for (std::int64_t first = 0; first < pairs; first += block_units) {
      const std::int64_t count = lesser(block_units, pairs - first);
      pack<static_cast<int>(tile_columns)>(x, in, tokens, first, count, in, count * tile_columns,
                                           packed_x + first * panels * tile_columns);
    }
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t row_begin = task * rows, row_end = lesser(out, row_begin + rows);
      for (std::int64_t first = 0; row_begin < row_end && first < pairs; first += block_units) {
        const std::int64_t count = lesser(block_units, pairs - first);
        pack<tile_rows>(dy + row_begin, out, tokens, first, count, row_end - row_begin, count * tile_rows,
                        packed_dy);
        for (std::int64_t panel = 0; panel < panels; ++panel) {
          const std::uint32_t* right =
              packed_x + first * panels * tile_columns + panel * count * tile_columns;
          const std::int64_t column = panel * tile_columns, columns = lesser(tile_columns, in - column);
          for (std::int64_t row = row_begin; row < row_end; row += tile_rows) {
            float* to = main_grad + row * in + column;
            const std::int64_t height = lesser<std::int64_t>(tile_rows, row_end - row);
            for (std::int64_t m = 0; m < height; ++m) {
              _mm_prefetch(reinterpret_cast<const char*>(to + m * in), _MM_HINT_T0);
              _mm_prefetch(reinterpret_cast<const char*>(to + m * in + columns - 1), _MM_HINT_T0);
            }
            F sums[tile_rows][tile_registers];
            clear(sums);
            multiply<Pair>(sums, packed_dy + (row - row_begin) * count, 1, tile_rows, right, tile_columns,
                           count);
            if (height == tile_rows && columns == tile_columns) {
#pragma GCC unroll 8
              for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
                for (int n = 0; n < tile_registers; ++n) {
                  float* at = to + m * in + n * W;
                  store(at, add(load(static_cast<const float*>(at)), sums[m][n]));
                }
              continue;
            }
            float tile[tile_rows][tile_columns];
#pragma GCC unroll 8
            for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
              for (int n = 0; n < tile_registers; ++n) store(tile[m] + n * W, sums[m][n]);
            for (std::int64_t m = 0; m < height; ++m)
              for (std::int64_t i = 0; i < columns; ++i) to[m * in + i] += tile[m][i];
          }
        }
      }
    }
  }
}

}  // namespace mgfl::x86

#endif
