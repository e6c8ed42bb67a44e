#include "policies/data/safetensors_dataset.hpp"

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "mgfl/base/error.hpp"
#include "mgfl/engine/padded_batch.hpp"

namespace mgfl::data {
namespace {

using Bounds = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Where the tokens of each row of a mask lie. UserError naming file and row.
Bounds tokens_of_rows(const std::string& file, std::int64_t length,
                      std::span<const std::int64_t> attention_mask) {
  Bounds bounds;
  while (!attention_mask.empty()) {
    const auto row = static_cast<std::int64_t>(bounds.size());
    try {
      bounds.push_back(tokens_of_row(attention_mask.first(static_cast<std::size_t>(length)), row));
    } catch (const UserError& error) {
      throw UserError(concat(file, ": ", error.what()));
    }
    check_user(bounds.back().first < bounds.back().second, file, ": attention_mask is 0 all along row ", row,
               ", so it has no token to train on; leave the row out.");
    attention_mask = attention_mask.subspan(static_cast<std::size_t>(length));
  }
  return bounds;
}

}  // namespace

SafetensorsDataset::SafetensorsDataset(std::string file, std::int64_t num_samples, std::int64_t length,
                                       std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels,
                                       std::vector<float> loss_mask, std::vector<double> returns,
                                       std::vector<std::int64_t> attention_mask) {
  check_user(num_samples > 0 && length > 0 && length <= std::numeric_limits<std::int32_t>::max(),
             "input_ids of ", file, " have the shape [", num_samples, ", ", length,
             "], but [samples, length] with at least one of each is due.");
  const auto check_size = [&](const char* tensor, std::size_t values) {
    check_user(values / static_cast<std::size_t>(length) == static_cast<std::size_t>(num_samples) &&
                   values % static_cast<std::size_t>(length) == 0,
               tensor, " of ", file, " has ", values, " values, but the shape of input_ids, [", num_samples,
               ", ", length, "], takes another number; all must have one shape.");
  };
  check_size("input_ids", input_ids.size());
  if (!labels.empty()) check_size("labels", labels.size());
  if (!loss_mask.empty()) check_size("loss_mask", loss_mask.size());
  if (!returns.empty()) check_size("returns", returns.size());
  if (!attention_mask.empty()) check_size("attention_mask", attention_mask.size());
  auto tokens = attention_mask.empty() ? Bounds(static_cast<std::size_t>(num_samples), {0, length})
                                       : tokens_of_rows(file, length, attention_mask);
  for (std::size_t i = 0; i < loss_mask.size(); ++i) {
    const auto [begin, end] = tokens[i / static_cast<std::size_t>(length)];
    const auto position = static_cast<std::int64_t>(i) % length;
    if (position < begin || position >= end) continue;
    check_user(std::isfinite(loss_mask[i]) && loss_mask[i] >= 0, "loss_mask of ", file, " has ", loss_mask[i],
               " in sample ", i / static_cast<std::size_t>(length), " at position ", position,
               ", where a number of 0 or more is due.");
  }
  tensors_ = std::make_shared<const Tensors>(
      Tensors{std::move(file), num_samples, length, std::move(input_ids), std::move(labels),
              std::move(loss_mask), std::move(returns), std::move(tokens)});
}

Sample SafetensorsDataset::sample(std::int64_t number) const {
  check_run(number >= 0 && number < size(), "Sample ", number, " of ", name(), " was asked for, but it has ",
            size(), ".");
  const auto row = [&](const auto& tensor) {
    std::remove_cvref_t<decltype(tensor)> values;
    const auto [begin, end] = tensors_->tokens[static_cast<std::size_t>(number)];
    const auto first = tensor.begin() + (tensor.empty() ? 0 : number * tensors_->length);
    if (!tensor.empty()) values.assign(first + begin, first + end);
    return values;
  };
  return make_sample(row(tensors_->input_ids), row(tensors_->labels), row(tensors_->loss_mask),
                     row(tensors_->returns));
}

}  // namespace mgfl::data
