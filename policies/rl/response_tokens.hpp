/// Which positions of packed sequences are response tokens, and whose.
#pragma once

#include <cstdint>

#include "mgfl/tensor/lean.hpp"

namespace mgfl::rl {

/// Response tokens of packed sequences. Positions outside take no part, whatever stands there.
struct ResponseTokens {
  Tensor positions;  // int64 [responses]: places in the packed vectors, ascending
  Tensor sequence;   // int64 [responses]: the sequence that each belongs to
  Tensor lengths;    // fp64 [sequences]: response tokens of each

  std::int64_t size() const { return positions.numel(); }
  std::int64_t num_sequences() const { return lengths.numel(); }

  /// values [tokens] of the packed vectors -> fp64 [responses], differentiable. UserError, by `name`, unless
  /// there is one for each token.
  Tensor select(const Tensor& values, const char* name) const;

  /// [responses] -> [sequences], the sum over each sequence's response, differentiable.
  Tensor sequence_sum(const Tensor& values) const;

  /// [sequences] -> [responses], the value of the sequence at each of its tokens, differentiable.
  Tensor per_token(const Tensor& values) const;

  std::int64_t packed_tokens = 0;
  std::int64_t filled_sequences = 0;  // those that have any token
};

/// response_mask [tokens] is 1 on response tokens and 0 elsewhere, cu_seqlens int32 [sequences + 1] has the
/// borders of the sequences. UserError where they do not fit.
ResponseTokens response_tokens(const Tensor& response_mask, const Tensor& cu_seqlens);

}  // namespace mgfl::rl
