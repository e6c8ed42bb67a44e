#include "policies/data/sample.hpp"

#include <limits>
#include <utility>

#include "mgfl/base/error.hpp"

namespace mgfl::data {

Sample make_sample(std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels,
                   std::vector<float> loss_mask, std::vector<double> returns) {
  const std::size_t length = input_ids.size();
  check_user(length > 0, "A sample without tokens cannot be trained on; leave it out.");
  check_user(length <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()), "A sample has ",
             length, " tokens, but at most 2147483647 fit; cut it into shorter ones.");
  if (labels.empty() && !returns.empty()) {
    labels = input_ids;  // stand for labels that are not ignored
  } else if (labels.empty()) {
    labels.assign(input_ids.begin() + 1, input_ids.end());
    labels.push_back(ignored_label);
  }
  if (loss_mask.empty()) loss_mask.assign(length, 1.0f);
  check_user(labels.size() == length, "A sample has ", length, " input_ids but ", labels.size(),
             " labels; they must be equally long.");
  check_user(loss_mask.size() == length, "A sample has ", length, " input_ids but ", loss_mask.size(),
             " values of loss_mask; they must be equally long.");
  check_user(returns.empty() || returns.size() == length, "A sample has ", length, " input_ids but ",
             returns.size(), " returns; they must be equally long.");
  for (std::size_t t = 0; t < length; ++t)
    if (labels[t] == ignored_label) loss_mask[t] = 0.0f;
  return {std::move(input_ids),
          std::move(labels),
          std::move(loss_mask),
          {0, static_cast<std::int32_t>(length)},
          std::move(returns)};
}

Sample masked(Sample sample) {
  sample.labels.assign(sample.labels.size(), ignored_label);
  sample.loss_mask.assign(sample.loss_mask.size(), 0.0f);
  return sample;
}

std::vector<std::int64_t> position_ids(const std::vector<std::int32_t>& cu_seqlens) {
  std::vector<std::int64_t> positions;
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d)
    for (std::int32_t t = cu_seqlens[d]; t < cu_seqlens[d + 1]; ++t) positions.push_back(t - cu_seqlens[d]);
  return positions;
}

void check_token_ids(const Sample& sample, std::int64_t vocab_size, std::string_view file,
                     std::int64_t number) {
  const auto check = [&](const char* what, std::int64_t id, std::size_t position) {
    check_user(id >= 0 && id < vocab_size, "The ", what, " ", id, " at position ", position, " of sample ",
               number, " of ", file, " is outside the model's vocabulary of ", vocab_size,
               " tokens; tokenize the data with the model's own tokenizer.");
  };
  for (std::size_t t = 0; t < sample.input_ids.size(); ++t) check("token id", sample.input_ids[t], t);
  for (std::size_t t = 0; t < sample.labels.size(); ++t)
    if (sample.labels[t] != ignored_label) check("label", sample.labels[t], t);
}

}  // namespace mgfl::data
