#include "policies/data/gpt_dataset.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "mgfl/base/error.hpp"
#include "policies/data/numpy_random.hpp"

namespace mgfl::data {

struct GptDataset::Indices {
  std::vector<std::int64_t> document, shuffle;
  std::vector<Start> sample;
};

namespace {

void check_config(const GptDatasetConfig& c, const std::string& name,
                  std::optional<std::int64_t> num_samples) {
  // cu_seqlens are 32-bit.
  check_user(c.sequence_length > 0 && c.sequence_length < std::numeric_limits<std::int32_t>::max(),
             "The sequence length for ", name, " is ", c.sequence_length,
             ", but must be from 1 to 2147483646.");
  check_user(c.random_seed >= 0 && c.random_seed <= std::numeric_limits<std::uint32_t>::max(), "The seed ",
             c.random_seed, " of the data order is outside 0 to 4294967295.");
  check_user(!num_samples || *num_samples > 0, "Of ", name, " ", num_samples.value_or(0),
             " samples were asked for; ask for at least one.");
  check_user(c.reset_position_ids == c.reset_attention_mask,
             "reset_position_ids and reset_attention_mask must be set together: positions begin anew where "
             "documents do.");
  check_user(!(c.inter_document_masking && c.reset_attention_mask),
             "inter_document_masking and reset_attention_mask both end documents, but in different places; "
             "set one.");
  check_user(
      c.eod_token_id || !(c.reset_attention_mask || c.eod_mask_loss),
      "reset_attention_mask and eod_mask_loss need the end-of-document token's id; give eod_token_id.");
}

std::vector<std::int64_t> repeated(const std::vector<std::int64_t>& sequences, std::int64_t epochs) {
  std::vector<std::int64_t> all;
  all.reserve(sequences.size() * static_cast<std::size_t>(epochs));
  for (std::int64_t e = 0; e < epochs; ++e) all.insert(all.end(), sequences.begin(), sequences.end());
  return all;
}

// Walks the documents laid end to end and notes where every `sequence_length` tokens begin.
std::vector<GptDataset::Start> build_sample_index(const IndexedDataset& dataset,
                                                  const std::vector<std::int64_t>& documents,
                                                  std::int64_t samples, std::int64_t sequence_length,
                                                  std::int64_t extra) {
  std::vector<GptDataset::Start> starts{{0, 0}};
  starts.reserve(static_cast<std::size_t>(samples) + 1);
  const auto length_of = [&](std::int64_t d) {
    return dataset.sequence_length(documents[static_cast<std::size_t>(d)]);
  };
  const auto last = static_cast<std::int64_t>(documents.size()) - 1;
  GptDataset::Start at;
  for (std::int64_t s = 0; s < samples; ++s) {
    std::int64_t wanted = sequence_length + extra;
    while (true) {
      const std::int64_t available = length_of(at.document) - at.offset;
      if (available >= wanted) {  // the next sample begins at this one's extra token
        at.offset += wanted - extra;
        break;
      }
      if (at.document == last) {  // the last sample of a set that keeps a partial one
        at.offset = length_of(last) - extra;
        break;
      }
      wanted -= available;
      at = {at.document + 1, 0};
    }
    starts.push_back(at);
  }
  return starts;
}

}  // namespace

std::array<std::pair<std::int64_t, std::int64_t>, 3> split_sequences(std::string_view split,
                                                                     std::int64_t num_sequences) {
  const auto malformed = [&] {
    return UserError(concat("The split \"", split,
                            "\" is not one to three weights of 0 or more with a sum above 0, ",
                            "such as \"969,30,1\" for train, valid and test."));
  };
  std::array<double, 3> weights{};
  std::size_t count = 0;
  for (std::size_t from = 0; from <= split.size(); ++count) {
    if (count == weights.size()) throw malformed();
    const std::size_t comma = std::min(split.find(',', from), split.size());
    const std::string part(split.substr(from, comma - from));
    std::size_t used = 0;
    try {
      weights[count] = std::stod(part, &used);
    } catch (const std::exception&) {
      throw malformed();
    }
    if (used != part.size() || !std::isfinite(weights[count]) || weights[count] < 0) throw malformed();
    from = comma + 1;
  }
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0)) throw malformed();
  std::array<std::pair<std::int64_t, std::int64_t>, 3> parts;
  double end = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    // Python's round: halves go to the even number, as nearbyint does.
    const auto bound = [&](double share) {
      return static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(num_sequences)));
    };
    const double begin = end;
    end += weights[i] / sum;
    parts[i] = {bound(begin), std::min(bound(end), num_sequences)};
  }
  return parts;
}

GptDataset::GptDataset(IndexedDataset dataset, const GptDatasetConfig& config,
                       std::optional<std::int64_t> num_samples,
                       std::optional<std::vector<std::int64_t>> chosen)
    : dataset_(std::move(dataset)), config_(config) {
  check_config(config, name(), num_samples);
  std::vector<std::int64_t> sequences;
  if (chosen) {
    sequences = std::move(*chosen);
  } else {
    sequences.resize(static_cast<std::size_t>(dataset_.num_sequences()));
    std::iota(sequences.begin(), sequences.end(), std::int64_t{0});
  }
  const std::int64_t extra = config.add_extra_token_to_sequence ? 1 : 0, length = config.sequence_length;
  std::int64_t tokens = 0;  // in one epoch
  for (const std::int64_t s : sequences) tokens += dataset_.sequence_length(s);

  const bool keep_partial = config.split == Split::valid && !config.drop_last_partial_validation_sequence;
  const std::int64_t fewest = keep_partial ? 1 + extra : length + extra;
  check_user(tokens > 0 && (num_samples || tokens >= fewest), name(), " has ", tokens, " tokens in ",
             sequences.size(), " sequences, but one sample takes ", fewest,
             "; give more data or a shorter sequence length.");
  std::int64_t epochs = 1;
  if (num_samples) {
    check_user(*num_samples <= (std::numeric_limits<std::int64_t>::max() / 4 - extra) / length,
               num_samples.value(), " samples of ", length, " tokens are more than can be counted.");
    epochs = std::max<std::int64_t>(1, (*num_samples * length + extra + tokens - 1) / tokens);
  }

  // With more than one epoch of which only little of the last is needed, the last is kept apart, so that the
  // samples before it hold each document equally often.
  bool separate_final_epoch = false;
  std::int64_t samples_sans_final_epoch = 0;
  if (epochs > 1) {
    samples_sans_final_epoch = ((epochs - 1) * tokens - extra) / length;
    const std::int64_t from_final_epoch = *num_samples - samples_sans_final_epoch;
    const std::int64_t per_epoch = (tokens - extra) / length;
    separate_final_epoch =
        from_final_epoch < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
  }

  RandomState random(static_cast<std::uint32_t>(config.random_seed));
  const auto shuffle = [&](std::span<std::int64_t> values) {
    if (config.shuffle) random.shuffle(values);
  };
  auto indices = std::make_shared<Indices>();
  indices->document = repeated(sequences, epochs);
  const std::span<std::int64_t> documents = indices->document;
  const std::size_t head = separate_final_epoch ? documents.size() - sequences.size() : documents.size();
  shuffle(documents.first(head));
  if (separate_final_epoch) shuffle(documents.subspan(head));

  // Megatron rounds a kept partial sample up in 32-bit floats, which miscounts beyond 2^24 tokens; this is
  // exact.
  const std::int64_t read = epochs * tokens - extra;
  const std::int64_t samples = keep_partial ? (read + length - 1) / length : read / length;
  indices->sample = build_sample_index(dataset_, indices->document, samples, length, extra);

  indices->shuffle.resize(static_cast<std::size_t>(samples));
  const std::span<std::int64_t> order = indices->shuffle;
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto first = static_cast<std::size_t>(separate_final_epoch ? samples_sans_final_epoch : samples);
  shuffle(order.first(first));
  shuffle(order.subspan(first));
  indices_ = std::move(indices);
}

std::int64_t GptDataset::size() const { return static_cast<std::int64_t>(indices_->shuffle.size()); }
const std::vector<std::int64_t>& GptDataset::document_index() const { return indices_->document; }
const std::vector<GptDataset::Start>& GptDataset::sample_index() const { return indices_->sample; }
const std::vector<std::int64_t>& GptDataset::shuffle_index() const { return indices_->shuffle; }

Sample GptDataset::sample(std::int64_t number) const {
  check_run(number >= 0 && number < size(), "Sample ", number, " of ", name(), " was asked for, but it has ",
            size(), ".");
  const auto at = static_cast<std::size_t>(indices_->shuffle[static_cast<std::size_t>(number)]);
  const Start begin = indices_->sample[at], end = indices_->sample[at + 1];
  const auto length = static_cast<std::size_t>(config_.sequence_length);
  const std::size_t extra = config_.add_extra_token_to_sequence ? 1 : 0;

  Sample result;
  std::vector<std::int64_t>& tokens = result.input_ids;
  tokens.reserve(length + extra);
  std::vector<std::size_t> ends;  // of the sequences inside
  for (std::int64_t d = begin.document; d <= end.document; ++d) {
    const std::int64_t from = d == begin.document ? begin.offset : 0;
    std::optional<std::int64_t> count;
    if (d == end.document) count = end.offset + static_cast<std::int64_t>(extra) - from;
    dataset_.append_to(tokens, indices_->document[static_cast<std::size_t>(d)], from, count);
    ends.push_back(tokens.size());
  }
  const std::int64_t pad = config_.pad_token_id;
  tokens.resize(length + extra, pad);
  result.labels.assign(tokens.begin() + 1, tokens.end());
  result.labels.resize(length, pad);
  tokens.resize(length);

  const auto is_eod = [&](std::size_t t) {
    return config_.eod_token_id && tokens[t] == *config_.eod_token_id;
  };
  if (config_.reset_attention_mask) {
    ends.clear();
    for (std::size_t t = 0; t < length; ++t)
      if (is_eod(t)) ends.push_back(t + 1);
  } else if (!config_.inter_document_masking) {
    ends.clear();
  }
  result.cu_seqlens.push_back(0);
  ends.push_back(length);
  for (const std::size_t border : ends) {
    const auto value = static_cast<std::int32_t>(std::min(border, length));
    if (value > result.cu_seqlens.back()) result.cu_seqlens.push_back(value);
  }

  result.loss_mask.assign(length, 1.0f);
  for (std::size_t t = 0; t < length; ++t)
    if ((config_.eod_mask_loss && is_eod(t)) || result.labels[t] == pad) result.loss_mask[t] = 0.0f;
  // The pad token need not be in the vocabulary, but what is read must be.
  std::replace(tokens.begin(), tokens.end(), pad, std::int64_t{0});
  std::replace(result.labels.begin(), result.labels.end(), pad, std::int64_t{0});
  return result;
}

}  // namespace mgfl::data
