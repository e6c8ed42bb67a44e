#include "mgfl/engine/mini_batches.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "mgfl/base/error.hpp"
#include "mgfl/base/random.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl {

namespace {

struct Unit {
  int rank = 0;
  std::vector<std::int64_t> sequences;  // of that rank
};

std::vector<Unit> units_of_all(const Tensor& units) {
  std::vector<Unit> all;
  const auto length = units.size(1);
  const auto* unit = units.const_data_ptr<std::int64_t>();
  for (std::int64_t rank = 0; rank < units.size(0); ++rank, unit += length) {
    const auto first = all.size();
    for (std::int64_t s = 0; s < length && unit[s] >= 0; ++s) {
      const auto place = first + static_cast<std::size_t>(unit[s]);
      if (place == all.size()) all.push_back({static_cast<int>(rank), {}});
      all[place].sequences.push_back(s);
    }
  }
  return all;
}

/// Fisher-Yates, with one stream of random numbers an epoch.
void shuffle(std::vector<Unit>& units, std::uint64_t seed, std::int64_t epoch) {
  const auto stream = stream_of("mini_batches") + static_cast<std::uint64_t>(epoch);
  for (std::size_t i = units.size(); i > 1; --i) {
    // uniform is in (0, 1]
    const auto j = static_cast<std::size_t>((1.0 - uniform(seed, stream, i)) * static_cast<double>(i));
    std::swap(units[i - 1], units[std::min(j, i - 1)]);
  }
}

std::int64_t mini_batch_size(const MiniBatchConfig& config, std::int64_t sequences) {
  check_user((config.mini_batch_size > 0) != (config.num_mini_batches > 0) && config.mini_batch_size >= 0 &&
                 config.num_mini_batches >= 0,
             "train_mini_batch: mini_batch_size is ", config.mini_batch_size, " and num_mini_batches is ",
             config.num_mini_batches, "; set exactly one of them, to a positive number.");
  check_user(config.epochs > 0, "train_mini_batch: epochs is ", config.epochs, "; it must be positive.");
  check_user(sequences > 0, "train_mini_batch: the batch has no sequence on any rank.");
  if (config.mini_batch_size > 0) return config.mini_batch_size;
  return (sequences + config.num_mini_batches - 1) / config.num_mini_batches;
}

}  // namespace

Tensor units_of(const Batch& batch, std::int64_t length) {
  auto units = zeros({length}, at::kLong).fill_(-1);
  const auto* group = batch.groups.defined() ? batch.groups.const_data_ptr<std::int64_t>() : nullptr;
  std::unordered_map<std::int64_t, std::int64_t> number;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s)
    units.data_ptr<std::int64_t>()[s] =
        group ? number.try_emplace(group[s], static_cast<std::int64_t>(number.size())).first->second : s;
  return units;
}

std::vector<std::vector<std::int64_t>> mini_batches_of_epoch(const Tensor& units,
                                                             const MiniBatchConfig& config,
                                                             std::int64_t epoch, int rank) {
  auto order = units_of_all(units);
  std::int64_t sequences = 0;
  for (const auto& unit : order) sequences += static_cast<std::int64_t>(unit.sequences.size());
  const auto size = mini_batch_size(config, sequences);
  if (config.shuffle) shuffle(order, config.seed, epoch);
  std::vector<std::vector<std::int64_t>> mini_batches(
      static_cast<std::size_t>((sequences + size - 1) / size));
  std::int64_t before = 0;
  for (const auto& unit : order) {
    const auto count = static_cast<std::int64_t>(unit.sequences.size());
    check_user(count <= size, "train_mini_batch: a group has ", count, " sequences, more than the ", size,
               " of a mini-batch; raise the mini-batch size or make smaller groups.");
    if (unit.rank == rank) {
      auto& mine = mini_batches[static_cast<std::size_t>(before / size)];
      mine.insert(mine.end(), unit.sequences.begin(), unit.sequences.end());
    }
    before += count;
  }
  for (auto& mine : mini_batches) std::sort(mine.begin(), mine.end());
  return mini_batches;
}

}  // namespace mgfl
