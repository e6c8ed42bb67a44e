/// Cross-entropy over logits whose columns tensor-parallel ranks share, as this build's vendor provides it.
/// Python: megatron/core/tensor_parallel/cross_entropy.py
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/tensor_parallel/cross_entropy_decl.hpp"

namespace mgfl::tensor_parallel {

/// The loss of each row, and what its gradient needs. fp32 (fp64), [rows].
struct CrossEntropy {
  Tensor loss;  // 0 where the target is ignored
  Tensor log_normalizer;
};

/// Columns [first, last) of a rank. Mirrors VocabUtility.vocab_range_from_global_vocab_size.
struct VocabRange {
  std::int64_t first, last;
};

/// Equal shares of the vocabulary, padded to a multiple of the number of ranks; the padding is in nobody's
/// range.
VocabRange vocab_range_from_global_vocab_size(std::int64_t vocab_size, int rank, int size);

/// See implementation<targets::combine_vocab_statistics, vendors::original>.
inline void combine_vocab_statistics(const VocabStatistics& statistics,
                                     const parallel::TensorParallelGroup& group) {
  dispatch<targets::combine_vocab_statistics>(statistics, group);
}

/// See implementation<targets::vocab_parallel_cross_entropy, vendors::original>.
inline CrossEntropy vocab_parallel_cross_entropy(const Tensor& vocab_parallel_logits, const Tensor& target,
                                                 double label_smoothing, std::int64_t vocab_size,
                                                 const parallel::TensorParallelGroup& group) {
  return dispatch<targets::vocab_parallel_cross_entropy>(vocab_parallel_logits, target, label_smoothing,
                                                         vocab_size, group);
}

/// Turns the logits into their gradient, in place: d_loss (p - (1 - s) 1[target] - s / V), and 0 where the
/// target is ignored. d_loss [rows].
void vocab_parallel_cross_entropy_backward(Tensor& vocab_parallel_logits, const Tensor& target,
                                           const CrossEntropy& forward, const Tensor& d_loss,
                                           double label_smoothing, std::int64_t vocab_size,
                                           const parallel::TensorParallelGroup& group);

}  // namespace mgfl::tensor_parallel
