// Causal attention over packed documents, forward and backward, with scores that never leave the second-level
// cache.
//
// Scores are kept transposed, [key][query]: softmax statistics are then one register per 16 queries, and no
// sum runs across lanes. Base-2 exponentials: e^(scale s - lse) = 2^(s scale log2 e - lse log2 e).
#include <sched.h>

#include "vendors/x86/simd/product.h"

namespace mgfl::x86 {
namespace {

constexpr std::int64_t query_block = 64, forward_keys = 128, backward_keys = 128;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
constexpr std::int64_t panels = query_block / tile_columns;

/// Hands out aligned pieces of one scratch allocation; with base null it only counts.
struct Arena {
  char* base = nullptr;
  std::size_t used = 0;

  template <class T>
  T* take(std::int64_t count) {
    T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (sizeof(T) * static_cast<std::size_t>(count) + 63) / 64 * 64;
    return piece;
  }
};

/// Where a head's rows lie.
struct Layout {
  std::int64_t width, out_width, group_width, head_dim, queries;

  explicit Layout(const Attention& shape)
      : width(shape.groups * (shape.queries_per_group + 2) * shape.head_dim),
        out_width(shape.groups * shape.queries_per_group * shape.head_dim),
        group_width((shape.queries_per_group + 2) * shape.head_dim),
        head_dim(shape.head_dim),
        queries(shape.queries_per_group) {}
  /// Offset of a token's query `head` (key: head == queries, value: queries + 1) of a group.
  std::int64_t at(std::int64_t token, std::int64_t group, std::int64_t head) const {
    return token * width + group * group_width + head * head_dim;
  }
  std::int64_t out_at(std::int64_t token, std::int64_t group, std::int64_t head) const {
    return token * out_width + (group * queries + head) * head_dim;
  }
};

/// Copies `rows` rows of head_dim elements to units and clears the rest, up to `padded` rows.
template <class P, class D>
MGFL_INLINE void copy_rows(const D* from, std::int64_t stride, std::int64_t rows, std::int64_t padded,
                           std::int64_t head_dim, typename P::unit* to) {
  const std::int64_t units = head_dim / P::depth;
  for (std::int64_t row = 0; row < rows; ++row) P::copy(from + row * stride, head_dim, to + row * units);
  __builtin_memset(to + rows * units, 0,
                   sizeof(typename P::unit) * static_cast<std::size_t>((padded - rows) * units));
}

/// Keys that some query of a block sees, [begin, end), positions in the document; end is rounded up to whole
/// tiles.
struct KeyRange {
  std::int64_t begin, end;
};
MGFL_INLINE KeyRange visible_keys(std::int64_t first_query, std::int64_t length, std::int64_t window) {
  const std::int64_t begin = window > 0 ? greater<std::int64_t>(0, first_query - window + 1) : 0;
  return {round_down(begin, tile_rows), round_up(lesser(first_query + query_block, length), tile_rows)};
}

/// Positions of a panel's queries, and which of their keys are hidden.
struct Mask {
  std::int64_t first, window;

  /// Whether some query of the panel does not see some key of the tile that starts at `key`.
  MGFL_INLINE bool cuts(std::int64_t key) const {
    return key + tile_rows - 1 > first || (window > 0 && key < first + tile_columns - window);
  }
  /// -infinity where the query of the lane does not see `key`.
  MGFL_INLINE F hide(F score, std::int64_t key, int n) const {
    alignas(64) static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F query = add(load(lanes), set1(static_cast<float>(first + n * W)));
    const F at = set1(static_cast<float>(key)), hidden = set1(-__builtin_inff());
    score = where_ge(query, at, score, hidden);
    return window > 0 ? where_ge(at, sub(query, set1(static_cast<float>(window - 1))), score, hidden) : score;
  }
};

/// Asks for `rows` rows of `bytes` bytes that will be needed soon; strides are beyond the hardware's own
/// prefetching.
MGFL_INLINE void prefetch_rows(const void* first, std::int64_t stride, std::int64_t rows,
                               std::int64_t bytes) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t at = 0; at < bytes; at += 64)
      _mm_prefetch(static_cast<const char*>(first) + row * stride + at, _MM_HINT_T0);
}

struct QueryBlock {
  std::int64_t first_token, length, first_key_row,
      first_query;  // first_key_row: of the document, in the packed keys
};

template <class P>
struct ForwardBuffers {
  typename P::unit *q, *q_columns, *probs;
  float *scores, *mixed, *largest, *sum, *shrink;

  ForwardBuffers(Arena& arena, std::int64_t d) {
    q = arena.take<typename P::unit>(query_block * d / P::depth);
    q_columns = arena.take<typename P::unit>(query_block * d / P::depth);
    scores = arena.take<float>(forward_keys * query_block);
    probs = arena.take<typename P::unit>(forward_keys * query_block / P::depth);
    mixed = arena.take<float>(query_block * d);
    largest = arena.take<float>(query_block);
    sum = arena.take<float>(query_block);
    shrink = arena.take<float>(query_block);
  }
};

/// One block of queries of one head against all its keys. keys [rows][head_dim / depth], values [rows /
/// depth][head_dim].
template <class P, class D>
void attend(const D* q, const typename P::unit* keys, const typename P::unit* values, const QueryBlock& block,
            const Attention& shape, const Layout& layout, const ForwardBuffers<P>& buffers, D* out,
            float* lse) {
  const std::int64_t d = shape.head_dim, units = d / P::depth, first_query = block.first_query;
  const std::int64_t rows = lesser(query_block, block.length - first_query);
  const F factor = set1(shape.scale * log2_e);
  copy_rows<P>(q, layout.width, rows, query_block, d, buffers.q);
  transpose(buffers.q, query_block, units, buffers.q_columns);
  for (std::int64_t i = 0; i < query_block; ++i) {
    buffers.largest[i] = -__builtin_inff();
    buffers.sum[i] = 0.0f;
  }

  const KeyRange range = visible_keys(first_query, block.length, shape.window);
  for (std::int64_t begin = range.begin; begin < range.end; begin += forward_keys) {
    const std::int64_t end = lesser(begin + forward_keys, range.end);
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const std::int64_t column = panel * tile_columns;
      const Mask mask{first_query + column, shape.window};
      const std::int64_t panel_end = lesser(end, round_up(first_query + column + tile_columns, tile_rows));
      F most[tile_registers];
      for (int n = 0; n < tile_registers; ++n) most[n] = set1(-__builtin_inff());
      for (std::int64_t key = begin; key < panel_end; key += tile_rows) {
        F sums[tile_rows][tile_registers];
        clear(sums);
        multiply<P>(sums, keys + key * units, units, 1, buffers.q_columns + column, query_block, units);
        float* to = buffers.scores + (key - begin) * query_block + column;
// Every loop over `sums` is unrolled: the compiler must keep it in registers.
#pragma GCC unroll 8
        for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
          for (int n = 0; n < tile_registers; ++n)
            store(to + m * query_block + n * W, mul(sums[m][n], factor));
        const bool cut = mask.cuts(key);
        for (int m = 0; m < tile_rows; ++m)
          for (int n = 0; n < tile_registers; ++n) {
            float* score = to + m * query_block + n * W;
            if (cut) store(score, mask.hide(load(score), key + m, n));
            most[n] = max(most[n], load(score));
          }
      }

      F base[tile_registers], sum[tile_registers];
      for (int n = 0; n < tile_registers; ++n) {
        float* largest = buffers.largest + column + n * W;
        const F before = load(largest), now = max(before, most[n]);
        base[n] = where_ge(now, set1(-3e38f), now, set1(0.0f));  // 0 while all keys so far are hidden
        const F shrink = exp2(sub(before, base[n]));
        store(largest, now);
        store(buffers.shrink + column + n * W, shrink);
        sum[n] = mul(load(buffers.sum + column + n * W), shrink);
      }
      for (std::int64_t key = begin; key < panel_end; key += 2) {
        const float* from = buffers.scores + (key - begin) * query_block + column;
        typename P::unit* to = buffers.probs + (key - begin) / P::depth * query_block + column;
#pragma GCC unroll 2
        for (int n = 0; n < tile_registers; ++n) {
          const F even = exp2(sub(load(from + n * W), base[n]));
          const F odd = exp2(sub(load(from + query_block + n * W), base[n]));
          sum[n] = add(sum[n], add(even, odd));
          P::store_rows(to + n * W, query_block, even, odd);
        }
      }
      for (int n = 0; n < tile_registers; ++n) store(buffers.sum + column + n * W, sum[n]);
    }

    for (std::int64_t row = 0; row < rows; row += tile_rows) {
      const std::int64_t row_end = lesser(end, round_up(first_query + row + tile_rows, tile_rows));
      float* mixed = buffers.mixed + row * d;
      const auto finish = [&](int m, std::int64_t column, F sum) { store(mixed + m * d + column, sum); };
      const typename P::unit* probs = buffers.probs + row;
      const typename P::unit* right = values + begin / P::depth * d;
      const std::int64_t depth = greater<std::int64_t>(0, row_end - begin) / P::depth;
      if (begin == range.begin) {
        product_rows<P>(
            probs, 1, query_block, right, d, depth, d, [](int, std::int64_t) { return set1(0.0f); }, finish);
      } else {
        const float* shrink = buffers.shrink + row;
        product_rows<P>(
            probs, 1, query_block, right, d, depth, d,
            [&](int m, std::int64_t column) { return mul(load(mixed + m * d + column), set1(shrink[m])); },
            finish);
      }
    }
  }

  for (std::int64_t row = 0; row < rows; ++row) {
    const float sum = buffers.sum[row];
    const F scale = set1(1.0f / sum);
    for (std::int64_t i = 0; i < d; i += W)
      store(out + row * layout.out_width + i, mul(load(buffers.mixed + row * d + i), scale));
    lse[row] = buffers.largest[row] * ln_2 + __builtin_logf(sum);
  }
}

}  // namespace

template <class D>
void attention(const D* qkv, Attention shape, D* out, float* lse, int threads) {
  using P = typename product_of<D>::type;
  using unit = typename P::unit;
  const Layout layout(shape);
  const std::int64_t d = shape.head_dim, units = d / P::depth;
  std::int64_t block_count = 0, packed_rows = 0;
  for (std::int64_t i = 0; i < shape.documents; ++i) {
    const std::int64_t length = shape.bounds[i + 1] - shape.bounds[i];
    block_count += round_up(length, query_block) / query_block;
    packed_rows += round_up(length, tile_rows);
  }

  QueryBlock* blocks = nullptr;
  unit *keys = nullptr, *values = nullptr;
  char* of_threads = nullptr;
  std::size_t bytes_per_thread = 0;
  const auto lay_out = [&](Arena arena) {
    blocks = arena.take<QueryBlock>(block_count);
    keys = arena.take<unit>(shape.groups * packed_rows * units);
    values = arena.take<unit>(shape.groups * packed_rows * units);
    Arena one;
    ForwardBuffers<P>(one, d);
    bytes_per_thread = one.used + 64;
    of_threads = arena.take<char>(static_cast<std::int64_t>(bytes_per_thread) * threads);
    return arena.used;
  };
  lay_out({static_cast<char*>(scratch(lay_out({}))), 0});

  // A document's blocks in descending order: the longest first.
  for (std::int64_t i = 0, next = 0, row = 0; i < shape.documents; ++i) {
    const std::int64_t length = shape.bounds[i + 1] - shape.bounds[i];
    for (std::int64_t first = round_up(length, query_block) - query_block; first >= 0; first -= query_block)
      blocks[next++] = {shape.bounds[i], length, row, first};
    row += round_up(length, tile_rows);
  }

  const std::int64_t heads = shape.groups * shape.queries_per_group;
  std::int64_t next_task = 0;
  int next_member = 0;
#pragma omp parallel num_threads(threads)
  {
    const int member = __atomic_fetch_add(&next_member, 1, __ATOMIC_RELAXED);
    Arena arena{of_threads + static_cast<std::size_t>(member) * bytes_per_thread, 0};
    const ForwardBuffers<P> buffers(arena, d);
    // Packing: each block of queries is a block of keys, too.
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < block_count * shape.groups; ++task) {
      const QueryBlock& block = blocks[task / shape.groups];
      const std::int64_t group = task % shape.groups, token = block.first_token + block.first_query;
      const std::int64_t rows = lesser(query_block, block.length - block.first_query),
                         padded = round_up(rows, tile_rows);
      const std::int64_t at = (group * packed_rows + block.first_key_row + block.first_query) * units;
      copy_rows<P>(qkv + layout.at(token, group, layout.queries), layout.width, rows, padded, d, keys + at);
      if (P::depth == 1) {
        copy_rows<P>(qkv + layout.at(token, group, layout.queries + 1), layout.width, rows, padded, d,
                     values + at);
      } else {
        copy_rows<P>(qkv + layout.at(token, group, layout.queries + 1), layout.width, rows, padded, d,
                     buffers.q);
        P::interleave(buffers.q, padded, d, values + at);
      }
    }
    for (;;) {
      const std::int64_t task = __atomic_fetch_add(&next_task, 1, __ATOMIC_RELAXED);
      if (task >= block_count * heads) break;
      // Heads outside, so that one group's keys are met again while they are in the cache.
      const std::int64_t head = task / block_count, group = head / shape.queries_per_group;
      const QueryBlock& block = blocks[task % block_count];
      const std::int64_t token = block.first_token + block.first_query;
      const std::int64_t at = (group * packed_rows + block.first_key_row) * units;
      attend<P>(qkv + layout.at(token, group, head % shape.queries_per_group), keys + at, values + at, block,
                shape, layout, buffers, out + layout.out_at(token, group, head % shape.queries_per_group),
                lse + head * shape.tokens + token);
    }
  }
}

namespace {

/// One block of keys of one document and group, against all queries that see them.
struct KeyTask {
  std::int64_t first_token, length, group, first_key;
  std::int64_t first_sum_block;  // of the document, in the query gradient's sums; -1 where one task does the
                                 // whole document
  std::int64_t before;           // the task that adds to the same query gradients before this one, or -1
};

/// How far a task is: query gradients below this position are done. One cache line each.
struct alignas(64) Progress {
  std::int64_t done;
};
constexpr std::int64_t all_done = std::int64_t{1} << 62;

void wait_until(const Progress& progress, std::int64_t position) {
  for (int spins = 0; __atomic_load_n(&progress.done, __ATOMIC_ACQUIRE) <= position; ++spins) {
    if (spins < 1000) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
}

template <class P>
struct BackwardBuffers {
  using unit = typename P::unit;
  unit *keys, *values, *key_rows, *q, *q_columns, *q_rows, *dout, *dout_columns, *dout_rows;
  unit *probs, *d_scores, *d_scores_by_key;
  float *d_keys, *d_values, *log_sum, *delta;

  BackwardBuffers(Arena& arena, std::int64_t d) {
    const std::int64_t of_keys = backward_keys * d / P::depth, of_queries = query_block * d / P::depth;
    const std::int64_t of_scores = backward_keys * query_block / P::depth;
    keys = arena.take<unit>(of_keys);
    values = arena.take<unit>(of_keys);
    key_rows = arena.take<unit>(of_keys);
    q = arena.take<unit>(of_queries);
    q_columns = arena.take<unit>(of_queries);
    q_rows = arena.take<unit>(of_queries);
    dout = arena.take<unit>(of_queries);
    dout_columns = arena.take<unit>(of_queries);
    dout_rows = arena.take<unit>(of_queries);
    probs = arena.take<unit>(of_scores);
    d_scores = arena.take<unit>(of_scores);
    d_scores_by_key = arena.take<unit>(of_scores);
    d_keys = arena.take<float>(backward_keys * d);
    d_values = arena.take<float>(backward_keys * d);
    log_sum = arena.take<float>(query_block);
    delta = arena.take<float>(query_block);
  }
};

/// Probabilities and score gradients of one block of keys [begin, end) and queries, as the three products
/// that follow want them: probs and d_scores [key][query / depth], d_scores_by_key [key / depth][query]. Key
/// indices count from first_key.
template <class P>
MGFL_INLINE void score_gradients(const BackwardBuffers<P>& buffers, std::int64_t first_key,
                                 std::int64_t first_query, KeyRange range, std::int64_t units,
                                 const Attention& shape) {
  const F factor = set1(shape.scale * log2_e);
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    const std::int64_t column = panel * tile_columns;
    const Mask mask{first_query + column, shape.window};
    const std::int64_t panel_end =
        lesser(range.end, round_up(first_query + column + tile_columns, tile_rows));
    F log_sum[tile_registers], delta[tile_registers];
    for (int n = 0; n < tile_registers; ++n) {
      log_sum[n] = load(buffers.log_sum + column + n * W);
      delta[n] = load(buffers.delta + column + n * W);
    }
    for (std::int64_t key = range.begin; key < panel_end; key += tile_rows) {
      const std::int64_t row = key - first_key;
      alignas(64) float probs[tile_rows][tile_columns];
      F sums[tile_rows][tile_registers];
      clear(sums);
      multiply<P>(sums, buffers.keys + row * units, units, 1, buffers.q_columns + column, query_block, units);
// Every loop over `sums` is unrolled: the compiler must keep it in registers.
#pragma GCC unroll 8
      for (int m = 0; m < tile_rows; ++m)
#pragma GCC unroll 2
        for (int n = 0; n < tile_registers; ++n) store(probs[m] + n * W, fms(sums[m][n], factor, log_sum[n]));
      if (mask.cuts(key))
        for (int m = 0; m < tile_rows; ++m)
          for (int n = 0; n < tile_registers; ++n)
            store(probs[m] + n * W, mask.hide(load(probs[m] + n * W), key + m, n));
      for (int m = 0; m < tile_rows; ++m)
        for (int n = 0; n < tile_registers; ++n) store(probs[m] + n * W, exp2(load(probs[m] + n * W)));
      clear(sums);
      multiply<P>(sums, buffers.values + row * units, units, 1, buffers.dout_columns + column, query_block,
                  units);
#pragma GCC unroll 8
      for (int m = 0; m < tile_rows; ++m) {
        F p[tile_registers];
#pragma GCC unroll 2
        for (int n = 0; n < tile_registers; ++n) {
          p[n] = load(probs[m] + n * W);
          sums[m][n] = mul(p[n], sub(sums[m][n], delta[n]));
        }
        const std::int64_t to = ((row + m) * query_block + column) / P::depth;
        P::store_row(buffers.probs + to, p);
        P::store_row(buffers.d_scores + to, sums[m]);
      }
      if (P::depth > 1) {
#pragma GCC unroll 4
        for (int m = 0; m < tile_rows; m += 2)
#pragma GCC unroll 2
          for (int n = 0; n < tile_registers; ++n)
            P::store_rows(buffers.d_scores_by_key + (row + m) / P::depth * query_block + column + n * W,
                          query_block, sums[m][n], sums[m + 1][n]);
      }
    }
  }
}

template <class P, class D>
void attend_backward(const D* dout, const D* qkv, const float* lse, const float* delta, const KeyTask& task,
                     const Progress* before, Progress& progress, const Attention& shape, const Layout& layout,
                     const BackwardBuffers<P>& buffers, float* d_query_sums, D* dqkv) {
  using unit = typename P::unit;
  const std::int64_t d = shape.head_dim, units = d / P::depth, group = task.group,
                     heads = shape.queries_per_group;
  const std::int64_t first_key = task.first_key, key_rows = lesser(backward_keys, task.length - first_key);
  const std::int64_t padded = round_up(key_rows, tile_rows), key_token = task.first_token + first_key;
  const unit* key_by_pairs = nullptr;
  copy_rows<P>(qkv + layout.at(key_token, group, heads), layout.width, key_rows, padded, d, buffers.keys);
  copy_rows<P>(qkv + layout.at(key_token, group, heads + 1), layout.width, key_rows, padded, d,
               buffers.values);
  key_by_pairs = P::interleave(buffers.keys, padded, d, buffers.key_rows);
  const auto bytes = sizeof(float) * static_cast<std::size_t>(padded * d);
  __builtin_memset(buffers.d_keys, 0, bytes);
  __builtin_memset(buffers.d_values, 0, bytes);

  // Queries see the last key of the block up to window - 1 positions later.
  const std::int64_t last_query = shape.window > 0
                                      ? lesser(task.length - 1, first_key + key_rows - 1 + shape.window - 1)
                                      : task.length - 1;
  for (std::int64_t first_query = round_down(first_key, query_block); first_query <= last_query;
       first_query += query_block) {
    const std::int64_t rows = lesser(query_block, task.length - first_query),
                       token = task.first_token + first_query;
    const KeyRange seen = visible_keys(first_query, task.length, shape.window);
    const KeyRange range{greater(first_key, seen.begin), lesser(first_key + padded, seen.end)};
    const bool is_first = first_key <= seen.begin, is_last = first_key + backward_keys >= seen.end;
    for (std::int64_t head = 0; head < heads; ++head) {
      copy_rows<P>(qkv + layout.at(token, group, head), layout.width, rows, query_block, d, buffers.q);
      copy_rows<P>(dout + layout.out_at(token, group, head), layout.out_width, rows, query_block, d,
                   buffers.dout);
      transpose(buffers.q, query_block, units, buffers.q_columns);
      transpose(buffers.dout, query_block, units, buffers.dout_columns);
      const unit* q_by_pairs = P::interleave(buffers.q, query_block, d, buffers.q_rows);
      const unit* dout_by_pairs = P::interleave(buffers.dout, query_block, d, buffers.dout_rows);
      const std::int64_t statistics = (group * heads + head) * shape.tokens + token;
      for (std::int64_t i = 0; i < query_block; ++i) {
        buffers.log_sum[i] =
            i < rows ? lse[statistics + i] * log2_e : __builtin_inff();  // no probability beyond the end
        buffers.delta[i] = i < rows ? delta[statistics + i] : 0.0f;
      }
      const std::int64_t block = first_query / query_block, position = block * heads + head;
      float* sums = task.first_sum_block < 0
                        ? nullptr
                        : d_query_sums + ((task.first_sum_block + block) * heads + head) * query_block * d;
      if (!is_first) prefetch_rows(sums, d * 4, rows, d * 4);
      score_gradients<P>(buffers, first_key, first_query, range, units, shape);
      // The next head of these queries, or the first head of the next ones.
      const bool same_rows = head + 1 < heads;
      const std::int64_t next_query = same_rows ? first_query : first_query + query_block,
                         next_head = same_rows ? head + 1 : 0;
      if (next_query <= last_query) {
        const std::int64_t next_token = task.first_token + next_query;
        const std::int64_t next_rows = lesser(query_block, task.length - next_query),
                           width = static_cast<std::int64_t>(sizeof(D));
        prefetch_rows(qkv + layout.at(next_token, group, next_head), layout.width * width, next_rows,
                      d * width);
        prefetch_rows(dout + layout.out_at(next_token, group, next_head), layout.out_width * width, next_rows,
                      d * width);
      }

      for (std::int64_t key = range.begin; key < range.end; key += tile_rows) {
        const std::int64_t row = key - first_key;
        const std::int64_t start =
            lesser(query_block, greater<std::int64_t>(0, round_down(key - first_query, 2))) / P::depth;
        const std::int64_t left = row * query_block / P::depth + start,
                           depth = query_block / P::depth - start;
        float* d_values = buffers.d_values + row * d;
        product_rows<P>(
            buffers.probs + left, query_block / P::depth, 1, dout_by_pairs + start * d, d, depth, d,
            [&](int m, std::int64_t column) { return load(d_values + m * d + column); },
            [&](int m, std::int64_t column, F sum) { store(d_values + m * d + column, sum); });
        float* d_keys = buffers.d_keys + row * d;
        product_rows<P>(
            buffers.d_scores + left, query_block / P::depth, 1, q_by_pairs + start * d, d, depth, d,
            [&](int m, std::int64_t column) { return load(d_keys + m * d + column); },
            [&](int m, std::int64_t column, F sum) { store(d_keys + m * d + column, sum); });
      }

      if (before && !is_first) wait_until(*before, position);
      const unit* by_key = P::depth > 1 ? buffers.d_scores_by_key : buffers.d_scores;
      const std::int64_t first_unit = (range.begin - first_key) / P::depth;
      const F scale = set1(shape.scale);
      for (std::int64_t row = 0; row < rows; row += tile_rows) {
        const std::int64_t end = lesser(range.end, round_up(first_query + row + tile_rows, tile_rows));
        const std::int64_t depth = greater<std::int64_t>(0, end - range.begin) / P::depth;
        float* sum_row = sums ? sums + row * d : nullptr;
        D* to = dqkv + layout.at(token + row, group, head);
        product_rows<P>(
            by_key + first_unit * query_block + row, 1, query_block, key_by_pairs + first_unit * d, d, depth,
            d,
            [&](int m, std::int64_t column) {
              return is_first ? set1(0.0f) : load(sum_row + m * d + column);
            },
            [&](int m, std::int64_t column, F sum) {
              if (!is_last) {
                store(sum_row + m * d + column, sum);
              } else if (row + m < rows) {
                store(to + m * layout.width + column, mul(sum, scale));
              }
            });
      }
      __atomic_store_n(&progress.done, position + 1, __ATOMIC_RELEASE);
    }
  }
  __atomic_store_n(&progress.done, all_done, __ATOMIC_RELEASE);

  const F scale = set1(shape.scale);
  for (std::int64_t row = 0; row < key_rows; ++row) {
    D* d_key = dqkv + layout.at(key_token + row, group, heads);
    D* d_value = dqkv + layout.at(key_token + row, group, heads + 1);
    for (std::int64_t i = 0; i < d; i += W) {
      store(d_key + i, mul(load(buffers.d_keys + row * d + i), scale));
      store(d_value + i, load(buffers.d_values + row * d + i));
    }
  }
}

}  // namespace

template <class D>
void attention_backward(const D* dout, const D* qkv, const D* out, const float* lse, Attention shape, D* dqkv,
                        int threads) {
  using P = typename product_of<D>::type;
  const Layout layout(shape);
  const std::int64_t d = shape.head_dim, heads = shape.groups * shape.queries_per_group;
  std::int64_t task_count = 0, sum_blocks = 0;
  for (std::int64_t i = 0; i < shape.documents; ++i) {
    const std::int64_t length = shape.bounds[i + 1] - shape.bounds[i];
    task_count += round_up(length, backward_keys) / backward_keys * shape.groups;
    if (length > backward_keys) sum_blocks += round_up(length, query_block) / query_block * shape.groups;
  }

  KeyTask* tasks = nullptr;
  Progress* progress = nullptr;
  float *delta = nullptr, *d_query_sums = nullptr;
  char* of_threads = nullptr;
  std::size_t bytes_per_thread = 0;
  const auto lay_out = [&](Arena arena) {
    tasks = arena.take<KeyTask>(task_count);
    progress = arena.take<Progress>(task_count);
    delta = arena.take<float>(heads * shape.tokens);
    d_query_sums = arena.take<float>(sum_blocks * shape.queries_per_group * query_block * d);
    Arena one;
    BackwardBuffers<P>(one, d);
    bytes_per_thread = one.used + 64;
    of_threads = arena.take<char>(static_cast<std::int64_t>(bytes_per_thread) * threads);
    return arena.used;
  };
  lay_out({static_cast<char*>(scratch(lay_out({}))), 0});

  // Tasks of one document and group add to the same query gradients, in ascending order of keys: whoever is
  // ahead waits. They are handed out in turns with those of other groups and documents, one for each thread,
  // so that nobody waits for long. `unit` counts documents and groups; the order of sums, and so the result,
  // does not depend on the turns.
  const std::int64_t all_units = shape.documents * shape.groups;
  std::int64_t next_slot = 0, next_sum = 0;
  for (std::int64_t first_unit = 0; first_unit < all_units; first_unit += threads) {
    const std::int64_t end_unit = lesser<std::int64_t>(first_unit + threads, all_units);
    bool more = true;
    for (std::int64_t key = 0; more; key += backward_keys) {
      more = false;
      for (std::int64_t u = first_unit; u < end_unit; ++u) {
        const std::int32_t* bounds = shape.bounds + u / shape.groups;
        const std::int64_t length = bounds[1] - bounds[0], group = u % shape.groups;
        if (key >= length) continue;
        more = true;
        KeyTask task{bounds[0], length, group, key, -1, -1};
        if (key > 0) {
          std::int64_t before = next_slot - 1;
          while (tasks[before].first_token != task.first_token || tasks[before].length != length ||
                 tasks[before].group != group)
            --before;
          task.before = before;
          task.first_sum_block = tasks[before].first_sum_block;
        } else if (length > backward_keys) {
          task.first_sum_block = next_sum;
          next_sum += round_up(length, query_block) / query_block;
        }
        progress[next_slot].done = 0;
        tasks[next_slot++] = task;
      }
    }
  }

  std::int64_t next_task = 0;
  int next_member = 0;
#pragma omp parallel num_threads(threads)
  {
    const int member = __atomic_fetch_add(&next_member, 1, __ATOMIC_RELAXED);
    Arena arena{of_threads + static_cast<std::size_t>(member) * bytes_per_thread, 0};
    const BackwardBuffers<P> buffers(arena, d);
#pragma omp for schedule(static)
    for (std::int64_t token = 0; token < shape.tokens; ++token)
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t at = token * layout.out_width + head * d;
        F sum = set1(0.0f);
        for (std::int64_t i = 0; i < d; i += W) sum = fma(load(dout + at + i), load(out + at + i), sum);
        delta[head * shape.tokens + token] = sum_of_lanes(sum);
      }
    for (;;) {
      const std::int64_t index = __atomic_fetch_add(&next_task, 1, __ATOMIC_RELAXED);
      if (index >= task_count) break;
      const KeyTask& task = tasks[index];
      attend_backward<P>(dout, qkv, lse, delta, task, task.before < 0 ? nullptr : progress + task.before,
                         progress[index], shape, layout, buffers, d_query_sums, dqkv);
    }
  }
}

template void attention(const float*, Attention, float*, float*, int);
template void attention(const bf16*, Attention, bf16*, float*, int);
template void attention_backward(const float*, const float*, const float*, const float*, Attention, float*,
                                 int);
template void attention_backward(const bf16*, const bf16*, const bf16*, const float*, Attention, bf16*, int);

}  // namespace mgfl::x86
