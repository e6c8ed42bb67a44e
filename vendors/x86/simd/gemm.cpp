// fp32 matrix products for AVX-512. Both operands are packed into panels as wide as a tile of the result; the
// tile stays in registers while a block of the summed dimension passes.
#include "vendors/x86/simd/product.h"

#if defined(__AVX512F__)

namespace mgfl::x86 {
namespace {

// 28 accumulators, two registers for the right operand, one for the left.
constexpr int left_width = 14, right_registers = 2;
constexpr std::int64_t right_width = right_registers * W;
constexpr std::int64_t depth_block = 576;  // summed at a time
constexpr std::int64_t row_block =
    126;  // rows in a task: with that depth, their panels fit the second-level cache
constexpr std::int64_t right_floats =
    1 << 20;  // right operand packed at a time, by all threads together: fits the third-level cache

constexpr std::int64_t blocks_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }
MGFL_INLINE void fetch(const float* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }

/// Whether an operand's rows in memory run along the summed dimension (x and w in x w^T) or across it.
enum class Rows { along_sum, across_sum };

/// One operand: rows of `stride` floats. A lane is one row of the left operand, one column of the right one.
template <Rows rows>
struct Operand {
  const float* data;
  std::int64_t stride;

  MGFL_INLINE const float* at(std::int64_t lane, std::int64_t k) const {
    return rows == Rows::along_sum ? data + lane * stride + k : data + k * stride + lane;
  }

  /// Packs lanes [lane, lane + lanes) over [first, first + depth) of the sum into panels of `width`,
  /// [panel][k][width], that lie `panel_floats` apart. Missing lanes read as 0; up to W - 1 floats after each
  /// panel may be overwritten.
  template <int width>
  MGFL_INLINE void pack(std::int64_t lane, std::int64_t lanes, std::int64_t first, std::int64_t depth,
                        std::int64_t panel_floats, float* to) const {
    if constexpr (rows == Rows::along_sum) {
      for (std::int64_t panel = 0; panel < lanes; panel += width, to += panel_floats)
        for (std::int64_t k = 0; k < depth; k += W) {
          const std::int64_t present = lesser<std::int64_t>(W, depth - k);
#pragma GCC unroll 2
          for (int i = 0; i < width; i += W) {
            F block[W];
#pragma GCC unroll 16
            for (int j = 0; j < W; ++j) {
              const float* units = at(lane + panel + i + j, first + k);
              if (i + j < width) fetch(units + 4 * W);
              block[j] = i + j < width && panel + i + j < lanes ? load(units, present) : set1(0.0f);
            }
            transpose(block);
#pragma GCC unroll 16
            for (int j = 0; j < W; ++j)
              if (j < present) store(to + (k + j) * width + i, block[j]);
          }
        }
    } else {
      constexpr std::int64_t ahead = 8;  // rows lie too far apart for the hardware's own prefetching
      for (std::int64_t begin = 0; begin < depth; begin += ahead) {
        const std::int64_t end = lesser(depth, begin + ahead);
        float* panel_to = to;
        for (std::int64_t panel = 0; panel < lanes; panel += width, panel_to += panel_floats)
          for (std::int64_t k = begin; k < end; ++k)
#pragma GCC unroll 2
            for (int i = 0; i < width; i += W) {
              const std::int64_t present = lesser<std::int64_t>(lesser(W, width - i), lanes - panel - i);
              const float* units = at(lane + panel + i, first + k);
              fetch(units + ahead * stride);
              store(panel_to + k * width + i, load(units, greater<std::int64_t>(present, 0)));
            }
      }
    }
  }
};

/// Where a tile goes, how many of its columns exist, and what is added to it: nothing (null), the bias
/// (start_stride 0) or what is there already.
struct Target {
  float* to;
  std::int64_t stride;
  const float* start;
  std::int64_t start_stride, columns;
};

template <int rows>
void tile(const float* left, const float* right, std::int64_t depth, const Target& target) {
  F sums[rows][right_registers];
#pragma GCC unroll 14
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
    for (int n = 0; n < right_registers; ++n) {
      fetch(target.to + m * target.stride + n * W);
      sums[m][n] = set1(0.0f);
    }
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < depth; ++k, left += left_width, right += right_width) {
    constexpr std::int64_t ahead = 8;
    F columns[right_registers];
#pragma GCC unroll 2
    for (int n = 0; n < right_registers; ++n) {
      columns[n] = load(right + n * W);
      fetch(right + ahead * right_width + n * W);
    }
#pragma GCC unroll 14
    for (int m = 0; m < rows; ++m) {
      const F unit = set1(left[m]);
#pragma GCC unroll 2
      for (int n = 0; n < right_registers; ++n) sums[m][n] = fma(unit, columns[n], sums[m][n]);
    }
  }
#pragma GCC unroll 2
  for (int n = 0; n < right_registers; ++n) {
    const std::int64_t lanes = lesser<std::int64_t>(W, greater<std::int64_t>(0, target.columns - n * W));
#pragma GCC unroll 14
    for (int m = 0; m < rows; ++m) {
      if (target.start)
        sums[m][n] = add(sums[m][n], load(target.start + m * target.start_stride + n * W, lanes));
      store(target.to + m * target.stride + n * W, sums[m][n], lanes);
    }
  }
}

/// The tile of `height` <= rows rows.
template <int rows = left_width>
MGFL_INLINE void tile_of(std::int64_t height, const float* left, const float* right, std::int64_t depth,
                         const Target& target) {
  if constexpr (rows > 0) {
    if (height == rows) {
      tile<rows>(left, right, depth, target);
    } else {
      tile_of<rows - 1>(height, left, right, depth, target);
    }
  }
}

struct Shape {
  std::int64_t rows, columns, depth;
};

/// to = left right + bias (if not null), or to += left right. Each element is summed by one thread, its
/// blocks of depth in ascending order.
template <Rows left_rows, Rows right_rows>
void multiply(Operand<left_rows> left, Operand<right_rows> right, Shape shape, const float* bias,
              bool accumulate, float* to, int threads) {
  const std::int64_t depth_step = blocks_of(shape.depth, blocks_of(shape.depth, depth_block));
  const std::int64_t column_step =
      lesser(round_up(shape.columns, right_width), round_down(right_floats / depth_step, right_width));
  const std::int64_t depth_pass =
      greater<std::int64_t>(1, right_floats / (depth_step * column_step)) * depth_step;
  const std::int64_t tiles = blocks_of(shape.rows, left_width);
  const std::int64_t tasks = round_up(blocks_of(shape.rows, row_block), threads);

  const std::int64_t packed_right_floats =
      column_step * lesser(depth_pass, round_up(shape.depth, depth_step));
  const std::int64_t panel_floats = round_up(left_width * depth_step + W, W);
  const std::int64_t packed_left_floats = blocks_of(tiles, tasks) * panel_floats;
  // Two of them: a thread that has finished a pass packs for the next while others still read this one's.
  const std::int64_t shared_floats =
      packed_right_floats * (column_step < shape.columns || depth_pass < shape.depth ? 2 : 1);
  auto* packed = static_cast<float*>(
      scratch(sizeof(float) * static_cast<std::size_t>(shared_floats + packed_left_floats * threads)));
  int next_member = 0;
#pragma omp parallel num_threads(threads)
  {
    float* packed_left =
        packed + shared_floats + packed_left_floats * __atomic_fetch_add(&next_member, 1, __ATOMIC_RELAXED);
    float* packed_right = packed;
    for (std::int64_t column = 0; column < shape.columns; column += column_step)
      for (std::int64_t pass = 0; pass < shape.depth; pass += depth_pass) {
        const std::int64_t columns = lesser(column_step, shape.columns - column);
        const std::int64_t width = round_up(columns, right_width);
        const std::int64_t pass_end = lesser(shape.depth, pass + depth_pass);

        packed_right = packed_right == packed ? packed + shared_floats - packed_right_floats : packed;

        // [block of depth][panel][k][right_width]. Each part reads long pieces of rows in memory.
        const std::int64_t parts = right_rows == Rows::along_sum ? width / right_width : 8;
#pragma omp for schedule(dynamic, 1)
        for (std::int64_t part = 0; part < parts * blocks_of(pass_end - pass, depth_step); ++part) {
          const std::int64_t first = pass + part / parts * depth_step, index = part % parts;
          const std::int64_t depth = lesser(depth_step, pass_end - first);
          float* block = packed_right + (first - pass) * width;
          if constexpr (right_rows == Rows::along_sum) {
            const std::int64_t lane = index * right_width;
            right.template pack<right_width>(column + lane, lesser(right_width, columns - lane), first, depth,
                                             0, block + lane * depth);
          } else {
            const std::int64_t begin = index * depth / parts, end = (index + 1) * depth / parts;
            right.template pack<right_width>(column, columns, first + begin, end - begin, right_width * depth,
                                             block + begin * right_width);
          }
        }

#pragma omp for schedule(dynamic, 1) nowait
        for (std::int64_t task = 0; task < tasks; ++task) {
          const std::int64_t row_begin = task * tiles / tasks * left_width;
          const std::int64_t row_end = lesser(shape.rows, (task + 1) * tiles / tasks * left_width);
          for (std::int64_t first = pass; row_begin < row_end && first < pass_end; first += depth_step) {
            const std::int64_t depth = lesser(depth_step, pass_end - first);
            left.template pack<left_width>(row_begin, row_end - row_begin, first, depth, panel_floats,
                                           packed_left);
            const bool add_to = accumulate || first > 0;
            for (std::int64_t lane = 0; lane < columns; lane += right_width) {
              const float* panel = packed_left;
              for (std::int64_t row = row_begin; row < row_end; row += left_width, panel += panel_floats) {
                float* tile_to = to + row * shape.columns + column + lane;
                const float* start = add_to ? tile_to : bias ? bias + column + lane : nullptr;
                tile_of(lesser<std::int64_t>(left_width, row_end - row), panel,
                        packed_right + (first - pass) * width + lane * depth, depth,
                        {tile_to, shape.columns, start, add_to ? shape.columns : 0, columns - lane});
              }
            }
          }
        }
      }
  }
}

}  // namespace

void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t tokens,
            std::int64_t out, std::int64_t in, int threads) {
  multiply(Operand<Rows::along_sum>{x, in}, Operand<Rows::along_sum>{w, in}, {tokens, out, in}, bias, false,
           y, threads);
}

void linear_input_grad(const float* dy, const float* w, float* dx, std::int64_t tokens, std::int64_t out,
                       std::int64_t in, int threads) {
  multiply(Operand<Rows::along_sum>{dy, out}, Operand<Rows::across_sum>{w, in}, {tokens, in, out}, nullptr,
           false, dx, threads);
}

void weight_grad(const float* dy, const float* x, float* main_grad, std::int64_t tokens, std::int64_t out,
                 std::int64_t in, int threads) {
  multiply(Operand<Rows::across_sum>{dy, out}, Operand<Rows::across_sum>{x, in}, {out, in, tokens}, nullptr,
           true, main_grad, threads);
}

}  // namespace mgfl::x86

#endif
