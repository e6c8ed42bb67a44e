/// Sequences padded to one length, on either side, and their way into a packed batch and back.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "mgfl/engine/batch.hpp"

namespace mgfl {

/// The tokens [begin, end) of one row of an attention mask, which may have padding on both sides. UserError,
/// naming row and position, for a value that is not 0 or 1, and for a hole.
std::pair<std::int64_t, std::int64_t> tokens_of_row(std::span<const std::int64_t> mask, std::int64_t row);

/// A table of sequences; only positions where attention_mask is 1 exist for the engine.
struct PaddedBatch {
  Tensor input_ids;       // int64 [sequences, length]
  Tensor attention_mask;  // int64 or bool [sequences, length]: 1 for tokens; undefined: no padding
  Tensor labels;          // int64 [sequences, length], as Batch::labels; undefined: the next token
  Tensor loss_mask;       // fp32 [sequences, length], as Batch::loss_mask
  Tensor position_ids;    // int64 [sequences, length]; undefined: 0, 1, ... from a sequence's first token
  Tensor temperature;     // [1] or [sequences]; undefined: 1

  Fields token_fields = {};     // each [sequences, length, ...]
  Fields sequence_fields = {};  // each [sequences, ...]
  Tensor groups = {};           // int64 [sequences], as Batch::groups
  BatchOptions options = {};
};

/// The packed batch, and where its tokens stood.
struct PackedBatch {
  Batch batch;
  Tensor places;  // int64 [tokens]: flat index in [sequences, length]
  std::int64_t sequences = 0, length = 0;

  /// values [tokens, ...] -> [sequences, length, ...], 0 at padding.
  Tensor unpack(const Tensor& values) const;
};

/// Drops the padding. UserError naming the tensor where shapes differ from that of input_ids, the mask is not
/// 0 or 1, or it has a hole inside a sequence.
PackedBatch pack(const PaddedBatch& padded);

}  // namespace mgfl
