/// Micro-batches under a hard cap of tokens, equally many on every data-parallel rank and balanced by the
/// cost of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mgfl {

struct TokenBudget {
  std::int64_t max_tokens = 0;          // per micro-batch; never exceeded
  std::int64_t data_parallel_size = 1;  // ranks that the sequences are dealt to
  std::int64_t multiple_of = 1;         // of micro-batches per rank, for interleaved pipelines
  std::int64_t min_micro_batches = 1;   // per rank
  /// A sequence of n tokens costs linear_cost x n + n^2: 6 x hidden size, verl's constant for 4096.
  double linear_cost = 24576;
};

/// Work of a sequence's forward and backward, up to a factor.
double sequence_cost(std::int64_t length, const TokenBudget& budget);

/// Sequences, by index and ascending, of each micro-batch of one rank; none in micro-batches that only keep
/// the ranks in step.
using MicroBatchIndices = std::vector<std::vector<std::int64_t>>;

/// Deals sequences of the given lengths to micro-batches: element r belongs to rank r. The same input gives
/// the same result on every rank; micro-batches of one place cost alike on all ranks, and the cheapest stand
/// at both ends, where a pipeline waits. There are as few per rank as a packing by falling length finds, or
/// min_micro_batches where that is more, rounded up to `multiple_of`.
///
/// `groups`: a number for each sequence, or nothing; sequences of one number share a micro-batch.
///
/// UserError where a sequence or group is longer than the cap, or a number of `budget` is out of range.
///
/// Ranks that hold their sequences already each call this with data_parallel_size 1, agree on the largest
/// number of micro-batches, and call again with that in `min_micro_batches`.
std::vector<MicroBatchIndices> partition_by_token_budget(std::span<const std::int64_t> lengths,
                                                         const TokenBudget& budget,
                                                         std::span<const std::int64_t> groups = {});

/// Where each sequence stands once micro-batches are laid end to end: results in the micro-batches' order,
/// indexed by this, are in the input's order.
std::vector<std::int64_t> inverse_permutation(const MicroBatchIndices& micro_batches);

}  // namespace mgfl
