/// Reads the token sequences of `mgfl score` and `mgfl generate` from a safetensors file, and puts per-token
/// results back into the file's own shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mgfl/engine/batch.hpp"

namespace mgfl::program {

/// A packed batch, and where each of its tokens stood in the file.
struct TokenFile {
  Batch batch;
  std::vector<std::int64_t> shape;  // of input_ids in the file
  Tensor places;                    // int64 [tokens]: flat index in that shape

  /// Values [tokens, ...] in the file's shape, zeros at padding.
  Tensor in_file_shape(const Tensor& values) const;
};

/// Names are PREFIX + name, or PREFIX.name. input_ids int64 [batch, length] (attention_mask: padding on
/// either side), or [tokens] or [1, tokens] with cu_seqlens int32. Without labels, each position predicts the
/// next token of its sequence. UserError naming file and tensor for whatever does not fit.
TokenFile read_token_file(const std::string& path, const std::string& prefix);

}  // namespace mgfl::program
