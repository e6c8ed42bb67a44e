#include "policies/data/dataset.hpp"

#include "mgfl/base/error.hpp"
#include "policies/data/global_batches.hpp"

namespace mgfl::data {

Dataset open_dataset(std::span<const std::string> arguments, const GptDatasetConfig& config,
                     std::optional<std::int64_t> num_samples) {
  const Blend blend = get_blend_from_list(arguments);
  const bool alone = blend.paths.size() == 1 && blend.weights.empty();
  if (alone && blend.paths[0].ends_with(".jsonl")) return JsonlDataset(blend.paths[0]);
  for (const std::string& path : blend.paths)
    check_user(!path.ends_with(".jsonl") && !path.ends_with(".safetensors"), "The data \"",
               join(arguments, " "), "\" blends ", path,
               ", but only prefixes of .bin/.idx files can be blended; give the file alone.");
  if (blend.paths.size() == 1) return GptDataset(IndexedDataset(blend.paths[0]), config, num_samples);
  return open_blend(blend, config, num_samples);
}

std::vector<Sample> read_samples(const Dataset& dataset, std::span<const std::int64_t> numbers) {
  std::vector<Sample> samples;
  samples.reserve(numbers.size());
  for (const std::int64_t n : numbers)
    samples.push_back(n == padding_sample ? masked(dataset.sample(0)) : dataset.sample(n));
  return samples;
}

}  // namespace mgfl::data
