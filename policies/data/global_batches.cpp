#include "policies/data/global_batches.hpp"

#include <limits>
#include <numeric>
#include <random>

#include "mgfl/base/error.hpp"
#include "policies/data/numpy_random.hpp"

namespace mgfl::data {

GlobalBatches::GlobalBatches(const GlobalBatchesConfig& config) : config_(config) {
  const auto& c = config_;
  check_user(c.global_batch_size > 0, "The global batch size is ", c.global_batch_size,
             "; it must be at least 1.");
  check_user(c.micro_batch_size > 0, "The micro-batch size is ", c.micro_batch_size,
             "; it must be at least 1.");
  check_run(
      c.data_parallel_size > 0 && c.data_parallel_rank >= 0 && c.data_parallel_rank < c.data_parallel_size,
      "Data-parallel rank ", c.data_parallel_rank, " of ", c.data_parallel_size, " does not exist.");
  check_user(c.micro_batch_size <= std::numeric_limits<std::int64_t>::max() / c.data_parallel_size,
             "The micro-batch size ", c.micro_batch_size, " is too large to be counted.");
  const std::int64_t step = c.micro_batch_size * c.data_parallel_size;
  check_user(c.global_batch_size % step == 0, "The global batch size ", c.global_batch_size,
             " is not a multiple of ", step, " = micro-batch size ", c.micro_batch_size,
             " x data-parallel size ", c.data_parallel_size, "; change one of them.");
  check_user(c.dataset_size > 0, "The data set has no samples; give data.");
  check_user(c.evaluation || c.dataset_size >= c.global_batch_size, "The data set has ", c.dataset_size,
             " samples, fewer than one global batch of ", c.global_batch_size,
             "; give more data or a smaller global batch size.");
  num_micro_batches_ = c.global_batch_size / step;
}

std::int64_t GlobalBatches::batches_per_epoch() const {
  return (config_.dataset_size - 1) / config_.global_batch_size + 1;
}

std::int64_t GlobalBatches::number_at(std::int64_t position) {
  const std::int64_t epoch = position / config_.dataset_size;
  const std::int64_t offset = position % config_.dataset_size;
  if (!config_.shuffle) return offset;
  if (epoch != epoch_) {
    const auto e = static_cast<std::uint64_t>(epoch);
    std::seed_seq words{config_.seed & 0xffffffffu, config_.seed >> 32, e & 0xffffffffu, e >> 32};
    RandomState random(words);
    order_.resize(static_cast<std::size_t>(config_.dataset_size));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    random.shuffle(std::span<std::int64_t>(order_));
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(offset)];
}

std::vector<std::int64_t> GlobalBatches::global_batch(std::int64_t consumed_samples) {
  check_run(consumed_samples >= 0, "A batch after ", consumed_samples, " samples was asked for.");
  std::vector<std::int64_t> numbers;
  if (config_.evaluation) {
    // Every pass over the data is the same: the first epoch's order, cut into whole batches.
    const std::int64_t begin = consumed_samples % (batches_per_epoch() * config_.global_batch_size);
    for (std::int64_t i = begin; i < begin + config_.global_batch_size; ++i)
      numbers.push_back(i < config_.dataset_size ? number_at(i) : padding_sample);
  } else {
    for (std::int64_t i = 0; i < config_.global_batch_size; ++i)
      numbers.push_back(number_at(consumed_samples + i));
  }
  return numbers;
}

std::vector<std::vector<std::int64_t>> GlobalBatches::micro_batches(std::int64_t consumed_samples) {
  const auto batch = global_batch(consumed_samples);
  std::vector<std::vector<std::int64_t>> result;
  const std::int64_t size = config_.micro_batch_size;
  for (std::int64_t m = 0; m < num_micro_batches_; ++m) {
    const auto from = batch.begin() + (m * config_.data_parallel_size + config_.data_parallel_rank) * size;
    result.emplace_back(from, from + size);
  }
  return result;
}

std::vector<std::int64_t> GlobalBatches::rank_samples(std::int64_t consumed_samples) {
  std::vector<std::int64_t> all;
  for (const auto& micro_batch : micro_batches(consumed_samples))
    all.insert(all.end(), micro_batch.begin(), micro_batch.end());
  return all;
}

}  // namespace mgfl::data
