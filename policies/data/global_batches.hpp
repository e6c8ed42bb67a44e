/// Which samples make up each global batch, and which of them a data-parallel rank takes.
// Mirrors megatron.training.datasets.data_samplers.MegatronPretrainingSampler; the shuffled order is our own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mgfl::data {

/// Stands in an evaluation's last batch for a sample that is not there.
inline constexpr std::int64_t padding_sample = -1;

struct GlobalBatchesConfig {
  std::int64_t dataset_size = 0;
  std::int64_t global_batch_size = 0;  // samples
  std::int64_t micro_batch_size = 1;   // samples
  std::int64_t data_parallel_rank = 0;
  std::int64_t data_parallel_size = 1;
  std::uint64_t seed = 1234;
  bool shuffle = true;      // false for data sets that have an order already
  bool evaluation = false;  // each sample once, the last batch filled up with padding_sample
};

/// Epochs follow on one another without a gap, each in an order that depends on seed and epoch alone; a batch
/// may take the end of one and the beginning of the next. A global batch depends on the samples consumed
/// before it, not on how they were spread over ranks or micro-batches, so training goes on at any layout
/// after a restart.
class GlobalBatches {
 public:
  /// UserError when the batch does not divide evenly or the data are fewer than one batch (evaluation
  /// excepted).
  explicit GlobalBatches(const GlobalBatchesConfig& config);

  /// Micro-batches of a rank in each global batch.
  std::int64_t num_micro_batches() const { return num_micro_batches_; }

  /// Batches that show each sample once, the last one filled up.
  std::int64_t batches_per_epoch() const;

  /// The sample numbers of the whole global batch that comes after `consumed_samples`, in order.
  std::vector<std::int64_t> global_batch(std::int64_t consumed_samples);

  /// This rank's micro-batches of it.
  std::vector<std::vector<std::int64_t>> micro_batches(std::int64_t consumed_samples);

  /// This rank's samples of it in one list, for packing by tokens.
  std::vector<std::int64_t> rank_samples(std::int64_t consumed_samples);

 private:
  std::int64_t number_at(std::int64_t position);

  GlobalBatchesConfig config_;
  std::int64_t num_micro_batches_ = 0;
  std::int64_t epoch_ = -1;  // whose order is held
  std::vector<std::int64_t> order_;
};

}  // namespace mgfl::data
