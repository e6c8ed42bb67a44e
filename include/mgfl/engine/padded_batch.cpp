#include "mgfl/engine/padded_batch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl {

std::pair<std::int64_t, std::int64_t> tokens_of_row(std::span<const std::int64_t> mask, std::int64_t row) {
  for (std::size_t t = 0; t < mask.size(); ++t)
    check_user(mask[t] == 0 || mask[t] == 1, "attention_mask is ", mask[t], " in row ", row, " at position ",
               t, "; it must be 1 for tokens and 0 for padding.");
  std::size_t begin = 0, end = mask.size();
  while (begin < end && mask[begin] == 0) ++begin;
  while (end > begin && mask[end - 1] == 0) --end;
  for (auto t = begin; t < end; ++t)
    check_user(mask[t] != 0, "attention_mask has a hole in row ", row, " at position ", t,
               "; padding may stand before or after a sequence, not inside.");
  return {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)};
}

Tensor PackedBatch::unpack(const Tensor& values) const {
  auto shape = values.sizes().vec();
  shape[0] = sequences * length;
  auto flat = zeros(shape, values.scalar_type());
  flat.index_copy_(0, places, values);
  shape[0] = length;
  shape.insert(shape.begin(), sequences);
  return flat.view(shape);
}

PackedBatch pack(const PaddedBatch& padded) {
  check_user(padded.input_ids.defined() && padded.input_ids.dim() == 2, "padded batch: input_ids has ",
             padded.input_ids.defined() ? padded.input_ids.dim() : 0,
             " dimensions; it must be [sequences, length].");
  const auto sequences = padded.input_ids.size(0), length = padded.input_ids.size(1);
  const auto check_shape = [&](const Tensor& values, const std::string& name) {
    check_user(values.dim() >= 2 && values.size(0) == sequences && values.size(1) == length,
               "padded batch: ", name, " has shape [", join(values.sizes()), "], but input_ids has [",
               sequences, ", ", length, "].");
  };

  auto borders = zeros({sequences + 1}, at::kInt);
  std::vector<std::int64_t> places;
  Tensor mask;
  if (padded.attention_mask.defined()) {
    check_shape(padded.attention_mask, "attention_mask");
    check_user(c10::isIntegralType(padded.attention_mask.scalar_type(), true),
               "padded batch: attention_mask has dtype ", c10::toString(padded.attention_mask.scalar_type()),
               "; it must be an integer or bool type.");
    mask = padded.attention_mask.to(at::kLong).contiguous();
  }
  check_user(padded.input_ids.numel() <= std::numeric_limits<std::int32_t>::max(),
             "padded batch: more than 2147483647 positions; make it smaller.");
  for (std::int64_t s = 0; s < sequences; ++s) {
    std::pair<std::int64_t, std::int64_t> tokens{0, length};
    if (mask.defined())
      tokens = tokens_of_row(
          {mask.const_data_ptr<std::int64_t>() + s * length, static_cast<std::size_t>(length)}, s);
    for (auto t = tokens.first; t < tokens.second; ++t) places.push_back(s * length + t);
    borders.data_ptr<std::int32_t>()[s + 1] = static_cast<std::int32_t>(places.size());
  }

  PackedBatch result;
  result.sequences = sequences;
  result.length = length;
  result.places = empty({static_cast<std::int64_t>(places.size())}, at::kLong);
  std::copy(places.begin(), places.end(), result.places.data_ptr<std::int64_t>());
  const auto gather = [&](const Tensor& values, const std::string& name) {
    if (!values.defined()) return values;
    check_shape(values, name);
    return values.flatten(0, 1).index_select(0, result.places).contiguous();
  };
  auto& batch = result.batch;
  batch.input_ids = gather(padded.input_ids, "input_ids");
  batch.labels = gather(padded.labels, "labels");
  batch.loss_mask = gather(padded.loss_mask, "loss_mask");
  batch.position_ids = gather(padded.position_ids, "position_ids");
  batch.cu_seqlens = borders;
  batch.temperature = padded.temperature;
  if (batch.temperature.defined() && batch.temperature.numel() > 1) {
    check_user(batch.temperature.dim() == 1 && batch.temperature.size(0) == sequences,
               "padded batch: temperature has shape [", join(batch.temperature.sizes()),
               "]; give one number, or one for each of the ", sequences, " sequences.");
    batch.temperature = batch.temperature.unsqueeze(1)
                            .expand({sequences, length})
                            .reshape({-1})
                            .index_select(0, result.places);
  }
  for (const auto& [name, values] : padded.token_fields)
    batch.token_fields.set(name, gather(values, concat("the field \"", name, "\"")));
  batch.sequence_fields = padded.sequence_fields;
  batch.groups = padded.groups;
  batch.options = padded.options;
  return result;
}

}  // namespace mgfl
