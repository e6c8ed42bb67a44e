/// Samples laid end to end for one forward pass, and micro-batches made under a cap of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/data/sample.hpp"

namespace mgfl::data {

/// A micro-batch: flat tokens of all samples and the borders of all documents in them.
struct PackedBatch {
  std::vector<std::int64_t> input_ids, labels;  // [tokens]
  std::vector<float> loss_mask;                 // [tokens]
  std::vector<std::int32_t> cu_seqlens;         // 0, ..., tokens
  std::vector<double> returns = {};             // [tokens] where the samples have any

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(input_ids.size()); }
  bool operator==(const PackedBatch&) const = default;
};

/// Lays samples end to end in the given order. No samples give an empty batch with cu_seqlens {0}.
PackedBatch pack(std::span<const Sample> samples);

/// Fills micro-batches in order, each as far as `max_tokens` allows. UserError for a sample longer than the
/// cap.
std::vector<PackedBatch> pack_in_order(std::span<const Sample> samples, std::int64_t max_tokens);

}  // namespace mgfl::data
