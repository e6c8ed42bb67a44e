/// Sums over rows, added to a main gradient in an order that the shape alone decides: rows are cut into
/// slices, each slice is summed in ascending order, then the slices are.
#pragma once

#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

/// partial[slice, column] = sum of element(row, column) over the slice's rows. One "row" of this pass is one
/// slice of a block of columns, a thread each.
template <class M, class Element>
struct SumSlices {
  Element element;
  std::int64_t rows, columns, rows_per_slice, column_blocks;
  M* partial;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t piece) const {
    const std::int64_t slice = piece / column_blocks, block = piece % column_blocks;
    const std::int64_t begin = slice * rows_per_slice, count = piece_length(rows, slice, rows_per_slice);
    team.each(piece_length(columns, block, Team::threads), [&](std::int64_t i) {
      const std::int64_t column = block * Team::threads + i;
      M sum = 0;
      for (std::int64_t row = begin; row < begin + count; ++row) sum += element(row, column);
      partial[slice * columns + column] = sum;
    });
  }
};

template <class M>
struct AddSlices {
  const M* partial;
  std::int64_t slices, columns;
  M* main_grad;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t block) const {
    team.each(piece_length(columns, block, Team::threads), [&](std::int64_t i) {
      const std::int64_t column = block * Team::threads + i;
      M sum = 0;
      for (std::int64_t slice = 0; slice < slices; ++slice) sum += partial[slice * columns + column];
      main_grad[column] += sum;
    });
  }
};

/// main_grad[column] += sum of element(row, column) over rows.
template <class M, class Executor, class Element>
void add_column_sums(Executor& executor, std::int64_t rows, std::int64_t columns, const Element& element,
                     M* main_grad) {
  if (rows == 0 || columns == 0) return;
  // At least 32 rows a slice, and no more blocks than keep a large GPU busy several times over.
  constexpr std::int64_t least_rows = 32, most_blocks = 2048;
  const std::int64_t blocks = pieces(columns, row_threads);
  const std::int64_t rows_for_few_blocks = pieces(rows * blocks, most_blocks);
  const std::int64_t rows_per_slice = rows_for_few_blocks > least_rows ? rows_for_few_blocks : least_rows;
  const std::int64_t slices = pieces(rows, rows_per_slice);
  M* partial = executor.template scratch<M>(slices * columns);
  executor.template rows<row_threads>(
      slices * blocks, SumSlices<M, Element>{element, rows, columns, rows_per_slice, blocks, partial});
  executor.template rows<row_threads>(blocks, AddSlices<M>{partial, slices, columns, main_grad});
}

template <class D>
struct BiasGrad {
  static constexpr const char* name = "bias_grad";
  using M = main_of<D>;

  const D* dy;
  M* main_grad;
  std::int64_t tokens, out;

  struct Element {
    const D* dy;
    std::int64_t out;

    MGFL_CUDA_DEVICE M operator()(std::int64_t token, std::int64_t column) const {
      return static_cast<M>(dy[token * out + column]);
    }
  };

  template <class Executor>
  void run(Executor& executor) const {
    add_column_sums(executor, tokens, out, Element{dy, out}, main_grad);
  }
};

}  // namespace mgfl::cuda
