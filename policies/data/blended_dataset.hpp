/// Megatron's BlendedDataset: several GPT data sets mixed by weight, the mix kept as even as can be at every
/// point.
// Mirrors megatron.core.datasets.blended_dataset.BlendedDataset and helpers.build_blending_indices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/data/gpt_dataset.hpp"
#include "policies/data/sample.hpp"

namespace mgfl::data {

/// For each sample of a mix: which data set, and which of its samples.
struct BlendingIndices {
  std::vector<std::int16_t> dataset_index;
  std::vector<std::int64_t> dataset_sample_index;
};

/// Weights scaled to a sum of 1, summed in numpy's order so that the order of samples is Megatron's to the
/// last bit.
std::vector<double> normalize(std::span<const double> weights);
/// `size` samples by weights whose sum is 1.
BlendingIndices build_blending_indices(std::span<const double> weights, std::int64_t size);
/// Exactly sizes[i] samples of data set i, in proportion as long as they last.
BlendingIndices build_exhaustive_blending_indices(std::span<const std::int64_t> sizes);
/// How many samples each data set must have ready for a mix of `size`, 0.5 % spare included.
std::vector<std::int64_t> samples_per_dataset(std::span<const double> weights, std::int64_t size);

/// What `--data` names: prefixes or files, with a weight each or with none at all.
struct Blend {
  std::vector<double> weights;
  std::vector<std::string> paths;
};

/// Reads `PATH`, `PATH PATH ...` or `WEIGHT PATH WEIGHT PATH ...`, as
/// megatron.core.datasets.utils.get_blend_from_list does.
Blend get_blend_from_list(std::span<const std::string> arguments);

/// Samples drawn from several sets; a value whose copies share their indices.
class BlendedDataset {
 public:
  /// By weight: each weight above 0; every set must hold the samples drawn from it (see samples_per_dataset).
  BlendedDataset(std::vector<GptDataset> datasets, std::span<const double> weights, std::int64_t size);
  /// Every sample of every set once.
  explicit BlendedDataset(std::vector<GptDataset> datasets);

  std::int64_t size() const { return static_cast<std::int64_t>(indices_->dataset_index.size()); }
  Sample sample(std::int64_t number) const;
  /// All prefixes, with commas between.
  const std::string& name() const { return name_; }
  const BlendingIndices& indices() const { return *indices_; }

 private:
  std::shared_ptr<const std::vector<GptDataset>> datasets_;
  std::shared_ptr<const BlendingIndices> indices_;
  std::string name_;
};

/// Opens every set of a blend. With weights, `num_samples` is needed; without, each set gives what one epoch
/// holds.
BlendedDataset open_blend(const Blend& blend, const GptDatasetConfig& config,
                          std::optional<std::int64_t> num_samples);

}  // namespace mgfl::data
