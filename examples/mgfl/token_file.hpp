/// Reads the token sequences of `mgfl score` and `mgfl generate` from a safetensors file, and puts per-token
/// results back into the file's own shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mgfl/engine/padded_batch.hpp"

namespace mgfl::program {

/// A file's sequences, packed, and where each of their tokens stood.
struct TokenFile {
  PackedBatch packed;               // its batch is a validated one
  std::vector<std::int64_t> shape;  // of input_ids in the file
  std::string prefix;               // of the names in the file

  /// Values [tokens, ...] in the file's shape, zeros at padding.
  Tensor in_file_shape(const Tensor& values) const;
};

/// Names are PREFIX + name, or PREFIX.name. input_ids int64 [batch, length] (attention_mask: padding on
/// either side), or [tokens] or [1, tokens] with cu_seqlens int32. Without labels, each position predicts the
/// next token of its sequence. UserError naming file and tensor for whatever does not fit.
TokenFile read_token_file(const std::string& path, const std::string& prefix, std::int64_t vocab_size);

/// The same for a value head, with the token fields `returns` and `values`, fp64, where the file has returns
/// and old_values. A position whose label is ignored does not count in the loss; without labels all do.
TokenFile read_value_file(const std::string& path, const std::string& prefix, std::int64_t vocab_size);

}  // namespace mgfl::program
