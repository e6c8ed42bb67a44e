/// The originals of cross-entropy over logits whose columns tensor-parallel ranks share.
/// Python: megatron/core/tensor_parallel/cross_entropy.py
#pragma once

#include <cstdint>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/tensor_parallel.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

namespace parallel {
class TensorParallelGroup;
}

namespace tensor_parallel {

/// Row statistics of the columns that a rank holds, [rows] of fp32 (fp64) each: as
/// kernels::vocab_row_statistics writes them.
struct VocabStatistics {
  Tensor& largest;
  Tensor& sum_exp;
  Tensor& sum_exp_z;
  Tensor& predicted;
};

struct CrossEntropy;

}  // namespace tensor_parallel

/// Statistics of a rank's own columns become those of all columns, the same bits on every rank. Collective:
/// one maximum, and one sum of three numbers a row.
template <>
struct implementation<targets::combine_vocab_statistics, vendors::original> {
  static void call(const tensor_parallel::VocabStatistics& statistics,
                   const parallel::TensorParallelGroup& group);
};

/// loss = (1 - s) (-log p(target)) - s mean over the whole vocabulary of log p, where
/// s = label_smoothing * V / (V - 1): the same for every number of ranks. (Megatron's takes V and the mean of
/// each rank's own columns.) vocab_parallel_logits [rows, this rank's share of vocab_size]; target int64
/// [rows], global ids or ignore_index. UserError where the logits are not this rank's share, e.g. gathered
/// already, and for a target outside the vocabulary. Collective.
template <>
struct implementation<targets::vocab_parallel_cross_entropy, vendors::original> {
  static tensor_parallel::CrossEntropy call(const Tensor& vocab_parallel_logits, const Tensor& target,
                                            double label_smoothing, std::int64_t vocab_size,
                                            const parallel::TensorParallelGroup& group);
};

}  // namespace mgfl
