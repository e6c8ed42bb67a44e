#include "policies/data/blended_dataset.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "mgfl/base/error.hpp"

namespace mgfl::data {
namespace {

// numpy sums in eight lanes, and in halves from 129 values on.
double numpy_sum(std::span<const double> values) {
  const std::size_t n = values.size();
  if (n > 128) {
    const std::size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sum = 0;
  std::size_t i = 0;
  if (n >= 8) {
    std::array<double, 8> lanes{};
    for (; i + 8 <= n; i += 8)
      for (std::size_t k = 0; k < 8; ++k) lanes[k] += values[i + k];
    sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  for (; i < n; ++i) sum += values[i];
  return sum;
}

void check_number_of_datasets(std::size_t count) {
  check_user(count > 0 && count <= 32767, "A blend of ", count,
             " data sets was asked for; it takes 1 to 32767.");
}

// The data set that lags furthest behind its share; the first of those that lag equally. Sets for which
// `open` is false are passed over.
template <class Open>
std::size_t furthest_behind(std::span<const double> weights, std::span<const std::int64_t> drawn,
                            std::int64_t number, Open open) {
  const double at = std::max(static_cast<double>(number), 1.0);
  std::size_t best = 0;
  double most = std::numeric_limits<double>::lowest();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double behind = weights[i] * at - static_cast<double>(drawn[i]);
    if (open(i) && behind > most) {
      most = behind;
      best = i;
    }
  }
  return best;
}

std::string names(const std::vector<GptDataset>& datasets) {
  std::vector<std::string> all;
  for (const GptDataset& d : datasets) all.push_back(d.name());
  return join(all);
}

std::vector<std::int64_t> sizes(const std::vector<GptDataset>& datasets) {
  std::vector<std::int64_t> all;
  for (const GptDataset& d : datasets) all.push_back(d.size());
  return all;
}

bool is_number(const std::string& text, double& value) {
  std::size_t used = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return false;
  }
  return used == text.size();
}

}  // namespace

std::vector<double> normalize(std::span<const double> weights) {
  for (const double w : weights)
    check_user(std::isfinite(w) && w > 0, "A weight of a blend is ", w,
               ", but weights must be above 0; leave that set out.");
  const double sum = numpy_sum(weights);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& w : normalized) w /= sum;
  return normalized;
}

BlendingIndices build_blending_indices(std::span<const double> weights, std::int64_t size) {
  check_number_of_datasets(weights.size());
  check_user(size > 0, "A blend of ", size, " samples was asked for; ask for at least one.");
  BlendingIndices result;
  result.dataset_index.reserve(static_cast<std::size_t>(size));
  result.dataset_sample_index.reserve(static_cast<std::size_t>(size));
  std::vector<std::int64_t> drawn(weights.size(), 0);
  for (std::int64_t n = 0; n < size; ++n) {
    const std::size_t next = furthest_behind(weights, drawn, n, [](std::size_t) { return true; });
    result.dataset_index.push_back(static_cast<std::int16_t>(next));
    result.dataset_sample_index.push_back(drawn[next]++);
  }
  return result;
}

BlendingIndices build_exhaustive_blending_indices(std::span<const std::int64_t> sizes) {
  check_number_of_datasets(sizes.size());
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    check_user(size >= 0, "A data set of a blend has ", size, " samples.");
    total += size;
  }
  check_user(total > 0, "The data sets of a blend have no sample between them; give data.");
  std::vector<double> weights;
  for (const std::int64_t size : sizes)
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  BlendingIndices result;
  std::vector<std::int64_t> drawn(sizes.size(), 0);
  for (std::int64_t n = 0; n < total; ++n) {
    const std::size_t next =
        furthest_behind(weights, drawn, n, [&](std::size_t i) { return drawn[i] < sizes[i]; });
    result.dataset_index.push_back(static_cast<std::int16_t>(next));
    result.dataset_sample_index.push_back(drawn[next]++);
  }
  return result;
}

std::vector<std::int64_t> samples_per_dataset(std::span<const double> weights, std::int64_t size) {
  std::vector<std::int64_t> result;
  for (const double w : normalize(weights))
    result.push_back(
        static_cast<std::int64_t>(std::ceil(std::ceil(static_cast<double>(size) * w) * (1 + 0.005))));
  return result;
}

Blend get_blend_from_list(std::span<const std::string> arguments) {
  check_user(!arguments.empty(), "No data was named; give a prefix or a file.");
  Blend blend;
  double weight = 0;
  // A lone argument, or a first one that is no number, means that there are no weights.
  if (arguments.size() == 1 || !is_number(arguments[0], weight)) {
    blend.paths.assign(arguments.begin(), arguments.end());
    return blend;
  }
  check_user(arguments.size() % 2 == 0, "The data \"", join(arguments, " "),
             "\" begins with a weight, but has ", arguments.size(), " words; give WEIGHT PATH pairs.");
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    check_user(is_number(arguments[i], weight) && std::isfinite(weight) && weight > 0, "The data \"",
               join(arguments, " "), "\" has \"", arguments[i],
               "\" where a weight above 0 is due; give WEIGHT PATH pairs.");
    blend.weights.push_back(weight);
    blend.paths.push_back(arguments[i + 1]);
  }
  return blend;
}

BlendedDataset::BlendedDataset(std::vector<GptDataset> datasets, std::span<const double> weights,
                               std::int64_t size) {
  check_user(datasets.size() == weights.size(), "A blend has ", datasets.size(), " data sets, but ",
             weights.size(), " weights; give one each.");
  indices_ = std::make_shared<const BlendingIndices>(build_blending_indices(normalize(weights), size));
  std::vector<std::int64_t> drawn(datasets.size(), 0);
  for (const std::int16_t d : indices_->dataset_index) ++drawn[static_cast<std::size_t>(d)];
  for (std::size_t i = 0; i < datasets.size(); ++i)
    check_user(drawn[i] <= datasets[i].size(), "The blend draws ", drawn[i], " samples from ",
               datasets[i].name(), ", but it was built with ", datasets[i].size(), "; build it with more.");
  name_ = names(datasets);
  datasets_ = std::make_shared<const std::vector<GptDataset>>(std::move(datasets));
}

BlendedDataset::BlendedDataset(std::vector<GptDataset> datasets)
    : indices_(std::make_shared<const BlendingIndices>(build_exhaustive_blending_indices(sizes(datasets)))),
      name_(names(datasets)) {
  datasets_ = std::make_shared<const std::vector<GptDataset>>(std::move(datasets));
}

Sample BlendedDataset::sample(std::int64_t number) const {
  check_run(number >= 0 && number < size(), "Sample ", number, " of the blend of ", name_,
            " was asked for, but it has ", size(), ".");
  const auto n = static_cast<std::size_t>(number);
  return (*datasets_)[static_cast<std::size_t>(indices_->dataset_index[n])].sample(
      indices_->dataset_sample_index[n]);
}

BlendedDataset open_blend(const Blend& blend, const GptDatasetConfig& config,
                          std::optional<std::int64_t> num_samples) {
  std::vector<GptDataset> datasets;
  if (blend.weights.empty()) {
    for (const std::string& path : blend.paths) datasets.emplace_back(IndexedDataset(path), config);
    return BlendedDataset(std::move(datasets));
  }
  check_user(num_samples.has_value(), "A blend by weight of ", join(blend.paths),
             " needs to know how many samples are drawn; give their number.");
  const auto counts = samples_per_dataset(blend.weights, *num_samples);
  for (std::size_t i = 0; i < blend.paths.size(); ++i)
    datasets.emplace_back(IndexedDataset(blend.paths[i]), config, counts[i]);
  return BlendedDataset(std::move(datasets), blend.weights, *num_samples);
}

}  // namespace mgfl::data
