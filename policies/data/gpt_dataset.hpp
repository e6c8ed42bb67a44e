/// Megatron's GPTDataset: a .bin/.idx set laid end to end and cut into samples of equal length, in Megatron's
/// order.
// Mirrors megatron.core.datasets.gpt_dataset.GPTDataset and helpers.build_sample_idx.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "policies/data/indexed_dataset.hpp"
#include "policies/data/sample.hpp"

namespace mgfl::data {

/// Which part of a data set: only a validation set may keep its last, partial sample.
enum class Split { train, valid, test };

/// Fields carry the names of Megatron's GPTDatasetConfig where it has them.
struct GptDatasetConfig {
  std::int64_t sequence_length = 0;
  std::int64_t random_seed = 1234;  // 0 to 2^32 - 1
  bool shuffle = true;              // false: samples in the order of the file
  Split split = Split::train;
  bool add_extra_token_to_sequence =
      true;  // a sample reads one token more, so that its last position has a label
  bool drop_last_partial_validation_sequence = true;
  std::optional<std::int64_t> eod_token_id;  // needed by the next three
  bool reset_position_ids = false;           // only together with reset_attention_mask
  bool reset_attention_mask = false;         // a document ends after each end-of-document token
  bool eod_mask_loss = false;                // the position of an end-of-document token does not count
  bool inter_document_masking = false;       // a document ends where a sequence of the file ends
  std::int64_t pad_token_id = -1;            // fills up a partial sample; its labels do not count
};

/// First and one-past-last sequence of the train, valid and test part, from Megatron's "969,30,1".
std::array<std::pair<std::int64_t, std::int64_t>, 3> split_sequences(std::string_view split,
                                                                     std::int64_t num_sequences);

/// Reads samples by number; a value whose copies share their indices. All indices are 64-bit.
class GptDataset {
 public:
  /// Where a sample begins: a position in document_index and an offset in tokens there.
  struct Start {
    std::int64_t document = 0, offset = 0;
    bool operator==(const Start&) const = default;
  };

  /// Over the given sequences (default: all); `num_samples` not given: one epoch, else as many epochs as it
  /// takes, so that size() >= num_samples. UserError when there are too few tokens or the options contradict
  /// each other.
  GptDataset(IndexedDataset dataset, const GptDatasetConfig& config,
             std::optional<std::int64_t> num_samples = {},
             std::optional<std::vector<std::int64_t>> sequences = {});

  std::int64_t size() const;
  Sample sample(std::int64_t number) const;
  const std::string& name() const { return dataset_.prefix(); }

  /// Sequences in the order in which they are laid end to end.
  const std::vector<std::int64_t>& document_index() const;
  /// size() + 1 entries; sample s reaches from entry s to entry s + 1.
  const std::vector<Start>& sample_index() const;
  /// Which of these samples is read as number i.
  const std::vector<std::int64_t>& shuffle_index() const;

 private:
  struct Indices;
  IndexedDataset dataset_;
  GptDatasetConfig config_;
  std::shared_ptr<const Indices> indices_;
};

}  // namespace mgfl::data
