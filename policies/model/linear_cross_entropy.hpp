/// Log-probabilities, entropies and their gradients straight from the head's input, in row chunks: logits are
/// never stored whole. Mirrors verl's linear_cross_entropy, with a temperature for each token.
#pragma once

#include "mgfl/engine/batch.hpp"
#include "policies/model/arena.hpp"

namespace mgfl::model {

/// log p(label) and, where asked for, the entropy of each position, over logits / temperature. hidden
/// [tokens, hidden], weight [vocab, hidden]. Written for the backward pass, [tokens] in the arena:
/// log_normalizer, entropy.
HeadOutput linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Batch& batch,
                                bool with_entropy, Arena& arena, Tensor& log_normalizer, Tensor& entropy);

/// d_hidden is written, weight_grad accumulates. d_log_prob, d_entropy [tokens]; d_entropy may be undefined.
void linear_cross_entropy_backward(const Tensor& hidden, const Tensor& weight, const Batch& batch,
                                   const Tensor& log_normalizer, const Tensor& entropy,
                                   const Tensor& d_log_prob, const Tensor& d_entropy, Arena& arena,
                                   Tensor& d_hidden, Tensor& weight_grad);

/// Both of the above in one pass, for a gradient d_log_prob [tokens] that is known beforehand.
HeadOutput linear_cross_entropy_forward_backward(const Tensor& hidden, const Tensor& weight,
                                                 const Batch& batch, const Tensor& d_log_prob,
                                                 bool with_entropy, Arena& arena, Tensor& d_hidden,
                                                 Tensor& weight_grad);

}  // namespace mgfl::model
