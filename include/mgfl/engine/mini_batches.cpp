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

void check_config(const MiniBatchConfig& config, std::int64_t sequences) {
  check_user((config.mini_batch_size > 0) != (config.num_mini_batches > 0) && config.mini_batch_size >= 0 &&
                 config.num_mini_batches >= 0,
             "train_mini_batch: mini_batch_size is ", config.mini_batch_size, " and num_mini_batches is ",
             config.num_mini_batches, "; set exactly one of them, to a positive number.");
  check_user(config.epochs > 0, "train_mini_batch: epochs is ", config.epochs, "; it must be positive.");
  check_user(sequences > 0, "train_mini_batch: the batch has no sequence on any rank.");
}

std::int64_t size_of(const Unit& unit) { return static_cast<std::int64_t>(unit.sequences.size()); }

/// The mini-batch of each unit: the next one where a unit would make this one too large.
std::vector<std::int64_t> places_by_size(const std::vector<Unit>& units, std::int64_t most) {
  std::vector<std::int64_t> places;
  std::int64_t place = 0, filled = 0;
  for (const auto& unit : units) {
    check_user(size_of(unit) <= most, "train_mini_batch: a group has ", size_of(unit),
               " sequences, more than the ", most,
               " of a mini-batch; raise the mini-batch size or make smaller groups.");
    if (filled + size_of(unit) > most) {
      ++place;
      filled = 0;
    }
    places.push_back(place);
    filled += size_of(unit);
  }
  return places;
}

/// The same for `count` mini-batches of even size, none of them empty.
std::vector<std::int64_t> places_by_count(const std::vector<Unit>& units, std::int64_t count,
                                          std::int64_t sequences) {
  const auto available = static_cast<std::int64_t>(units.size());
  check_user(count <= available, "train_mini_batch: num_mini_batches is ", count, ", but the batch has ",
             available, " sequences or groups to deal out; ask for fewer mini-batches.");
  std::vector<std::int64_t> places;
  std::int64_t place = -1, before = 0;
  for (std::int64_t u = 0; u < available; ++u) {
    const auto even = before * count / sequences;
    place = std::max(std::min(even, place + 1), count - (available - u));
    places.push_back(place);
    before += size_of(units[static_cast<std::size_t>(u)]);
  }
  return places;
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
  check_config(config, sequences);
  if (config.shuffle) shuffle(order, config.seed, epoch);
  const auto places = config.mini_batch_size > 0 ? places_by_size(order, config.mini_batch_size)
                                                 : places_by_count(order, config.num_mini_batches, sequences);
  std::vector<std::vector<std::int64_t>> mini_batches(static_cast<std::size_t>(places.back()) + 1);
  for (std::size_t u = 0; u < order.size(); ++u)
    if (order[u].rank == rank) {
      auto& mine = mini_batches[static_cast<std::size_t>(places[u])];
      mine.insert(mine.end(), order[u].sequences.begin(), order[u].sequences.end());
    }
  for (auto& mine : mini_batches) std::sort(mine.begin(), mine.end());
  return mini_batches;
}

}  // namespace mgfl
