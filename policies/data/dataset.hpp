/// Any data set that can be trained on, as one value type.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "policies/data/blended_dataset.hpp"
#include "policies/data/gpt_dataset.hpp"
#include "policies/data/jsonl_dataset.hpp"
#include "policies/data/safetensors_dataset.hpp"
#include "policies/data/sample.hpp"

namespace mgfl::data {

/// Has a number of samples, numbered from 0, and gives each as a value of its own. Copies are cheap.
class Dataset {
 public:
  using Kinds = std::variant<GptDataset, BlendedDataset, JsonlDataset, SafetensorsDataset>;

  template <class Kind>
  requires std::constructible_from<Kinds, Kind> Dataset(Kind dataset)
      : kind_(std::move(dataset)) {}  // NOLINT: implicit, as a variant's constructor is

  std::int64_t size() const {
    return std::visit([](const auto& d) { return d.size(); }, kind_);
  }
  /// RunError outside [0, size()).
  Sample sample(std::int64_t number) const {
    return std::visit([&](const auto& d) { return d.sample(number); }, kind_);
  }
  /// The file, or the prefixes.
  const std::string& name() const {
    return std::visit([](const auto& d) -> const std::string& { return d.name(); }, kind_);
  }
  /// Whether samples come in an order of their own already, so that they must not be shuffled again.
  bool is_ordered() const { return kind_.index() < 2; }

 private:
  Kinds kind_;
};

/// Opens what `--data` names: one .jsonl file, or one or more .bin/.idx prefixes with or without weights. A
/// prefix alone gives a GptDataset. `num_samples`: how many will be drawn; needed for a blend by weight. A
/// .safetensors file is the caller's to read: see SafetensorsDataset.
Dataset open_dataset(std::span<const std::string> arguments, const GptDatasetConfig& config,
                     std::optional<std::int64_t> num_samples = {});

/// The samples of the given numbers; `padding_sample` (see GlobalBatches) gives sample 0 with nothing to
/// learn from.
std::vector<Sample> read_samples(const Dataset& dataset, std::span<const std::int64_t> numbers);

}  // namespace mgfl::data
