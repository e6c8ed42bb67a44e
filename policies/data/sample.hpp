/// One training sample as a value: its tokens, what they should predict, and the documents inside it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mgfl::data {

/// Label of a position that predicts nothing.
inline constexpr std::int64_t ignored_label = -100;

/// A sample owns all it holds, so no change to one reaches another. `input_ids`, `labels`, `loss_mask` and
/// `returns`, where there are any, are equally long; labels[t] is the token that position t predicts,
/// returns[t] what a value head should say there. Position ids start again at 0 at each entry of cu_seqlens.
struct Sample {
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> labels;
  std::vector<float> loss_mask;
  std::vector<std::int32_t> cu_seqlens;  // borders of the documents inside: 0, ..., length
  std::vector<double> returns = {};

  std::int64_t length() const { return static_cast<std::int64_t>(input_ids.size()); }
  bool operator==(const Sample&) const = default;
};

/// The sample of one document, given its tokens. Without `labels` each position predicts the next token and
/// the last predicts nothing; without `loss_mask` (empty) all positions count. The mask is 0 wherever a label
/// is ignored; with `returns` and without labels it is nowhere, since a value head predicts no token.
Sample make_sample(std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels = {},
                   std::vector<float> loss_mask = {}, std::vector<double> returns = {});

/// The same sample with nothing to learn from: labels ignored, mask 0. It fills up an incomplete evaluation
/// batch.
Sample masked(Sample sample);

/// Position ids of a sample or a packed batch, 0, 1, ... again from each border on.
std::vector<std::int64_t> position_ids(const std::vector<std::int32_t>& cu_seqlens);

/// Throws UserError unless every token id is in [0, vocab_size) and every label too or `ignored_label`; the
/// message names the file, the sample, the position, the id and the vocabulary size.
void check_token_ids(const Sample& sample, std::int64_t vocab_size, std::string_view file,
                     std::int64_t number);

}  // namespace mgfl::data
