/// Which sequences of a job's batch make up each mini-batch of an update.
#pragma once

#include <cstdint>
#include <vector>

#include "mgfl/engine/batch.hpp"

namespace mgfl {

/// How train_mini_batch goes through a batch. Exactly one of mini_batch_size and num_mini_batches is set.
struct MiniBatchConfig {
  std::int64_t mini_batch_size = 0;   // sequences at most, over all data-parallel ranks
  std::int64_t num_mini_batches = 0;  // an epoch, of even size
  std::int64_t epochs = 1;
  bool shuffle = true;  // anew each epoch
  std::uint64_t seed = 42;
};

/// For each sequence of a rank's batch, the number of the unit that stays together: its group's, by first
/// occurrence, or its own. int64 [length], -1 behind the last sequence.
Tensor units_of(const Batch& batch, std::int64_t length);

/// The sequences of `rank` in each mini-batch of one epoch, ascending. `units` [ranks, length]: units_of each
/// rank. The ranks' batches count as laid end to end in rank order, so mini-batches do not depend on how many
/// ranks share them; groups stay whole, and none is empty over all ranks. UserError for a config that names
/// no size, a batch without sequences, a group that is larger than mini_batch_size, and more mini-batches
/// than groups.
std::vector<std::vector<std::int64_t>> mini_batches_of_epoch(const Tensor& units,
                                                             const MiniBatchConfig& config,
                                                             std::int64_t epoch, int rank);

}  // namespace mgfl
