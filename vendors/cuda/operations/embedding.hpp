/// Rows of the embedding by token id, and their gradient in ascending order of tokens.
#pragma once

#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

template <class D>
struct Embedding {
  static constexpr const char* name = "embedding";

  const std::int64_t* ids;
  const D* w;
  std::int64_t first_row;
  D* out;
  std::int64_t tokens, rows, hidden;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t row = ids[token] - first_row;
    const bool held = row >= 0 && row < rows;
    team.each(hidden, [&](std::int64_t i) {
      out[token * hidden + i] = held ? w[row * hidden + i] : static_cast<D>(0.0f);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(tokens, *this);
  }
};

/// Chains the tokens of one id: next[t] is the next token with t's id or -1, is_first[t] whether none comes
/// before (0 where the row is not held here). Quadratic in tokens at worst, over ids that stay in the cache.
struct ChainTokens {
  const std::int64_t* ids;
  std::int64_t first_row, rows, tokens;
  std::int64_t *next, *is_first;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t block) const {
    team.each(piece_length(tokens, block, Team::threads), [&](std::int64_t i) {
      const std::int64_t token = block * Team::threads + i, id = ids[token], row = id - first_row;
      std::int64_t before = token - 1, after = token + 1;
      while (before >= 0 && ids[before] != id) --before;
      while (after < tokens && ids[after] != id) ++after;
      is_first[token] = before < 0 && row >= 0 && row < rows;
      next[token] = after < tokens ? after : -1;
    });
  }
};

template <class D>
struct EmbeddingBackward {
  static constexpr const char* name = "embedding_backward";
  using M = main_of<D>;

  const std::int64_t* ids;
  const D* dout;
  std::int64_t first_row;
  M* main_grad;
  std::int64_t tokens, rows, hidden;

  /// The first token of each id walks the chain, for a block of columns.
  struct AddChain {
    EmbeddingBackward all;
    const std::int64_t *next, *is_first;
    std::int64_t blocks;

    template <class Team>
    MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t piece) const {
      const std::int64_t token = piece / blocks, block = piece % blocks;
      if (!is_first[token]) return;
      const std::int64_t row = all.ids[token] - all.first_row;
      team.each(piece_length(all.hidden, block, Team::threads), [&](std::int64_t i) {
        const std::int64_t column = block * Team::threads + i;
        M sum = all.main_grad[row * all.hidden + column];
        for (std::int64_t t = token; t >= 0; t = next[t])
          sum += static_cast<M>(all.dout[t * all.hidden + column]);
        all.main_grad[row * all.hidden + column] = sum;
      });
    }
  };

  template <class Executor>
  void run(Executor& executor) const {
    if (tokens == 0) return;
    std::int64_t* next = executor.template scratch<std::int64_t>(2 * tokens);
    std::int64_t* is_first = next + tokens;
    executor.template rows<row_threads>(pieces(tokens, row_threads),
                                        ChainTokens{ids, first_row, rows, tokens, next, is_first});
    const std::int64_t blocks = pieces(hidden, row_threads);
    executor.template rows<row_threads>(tokens * blocks, AddChain{*this, next, is_first, blocks});
  }
};

}  // namespace mgfl::cuda
