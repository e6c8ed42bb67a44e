/// What the operations of the cuda set share. An operation is an aggregate of pointers and sizes with a name
/// and `run(executor)`, which enqueues its passes in order; a pass is a functor (team, row), called once for
/// each row by a team of threads. Nothing here names CUDA but for the mark below, so that a host's compiler
/// and its tests run the very same arithmetic.
///
/// What a pass asks of a team of `Team::threads` threads:
///   each(n, body)                           body(i) for i in [0, n): thread i % threads does i, in ascending
///   order reduce(n, initial, element, combine)    combines element(i) over [0, n), which every thread
///   receives: each
///                                           thread its own i ascending from `initial`, then pairwise over
///                                           threads
/// An element that one thread wrote is read by no other thread of the same pass.
///
/// What an operation asks of an executor:
///   rows<threads>(count, pass)              pass(team, row) for every row in [0, count), in no order
///   scratch<T>(n)                           uninitialised memory for this call
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define MGFL_CUDA_DEVICE __device__
#else
#define MGFL_CUDA_DEVICE
#endif

namespace mgfl::cuda {

/// The dtype M of a dtype D: of sums, statistics and main gradients.
template <class D>
using main_of = std::conditional_t<std::is_same_v<D, double>, double, float>;

/// Threads of a team for a row of hidden, ffn or vocabulary size, and for a single head.
inline constexpr int row_threads = 256, head_threads = 32;

struct Plus {
  template <class T>
  MGFL_CUDA_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

/// Elements of the block-th piece of `size`, in pieces of `most`; the last piece may be shorter.
MGFL_CUDA_DEVICE inline std::int64_t piece_length(std::int64_t size, std::int64_t piece, std::int64_t most) {
  const std::int64_t rest = size - piece * most;
  return rest < most ? rest : most;
}

constexpr std::int64_t pieces(std::int64_t size, std::int64_t most) { return (size + most - 1) / most; }

}  // namespace mgfl::cuda
