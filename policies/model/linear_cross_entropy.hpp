/// Log-probabilities, entropies and their gradients straight from the head's input, in row chunks: logits are
/// never stored whole. Mirrors verl's linear_cross_entropy, with a temperature for each token.
#pragma once

#include "mgfl/engine/outputs.hpp"
#include "policies/model/arena.hpp"

namespace mgfl::model {

/// What the forward pass leaves to the backward pass, [tokens] in the arena.
struct HeadStatistics {
  Tensor log_normalizer;  // log of the sum of exponentials of the logits that the kernels saw
  Tensor entropy;
  Tensor sum_pi_squared;  // undefined unless asked for
};

/// 1 / temperature of every token, [tokens]; the floor is verl's.
Tensor logit_scale(const Batch& batch, at::ScalarType dtype);

/// log p(label), and what else is asked for, of each position, over logits / temperature. hidden
/// [tokens, hidden], weight [vocab, hidden].
LanguageModelOutput linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Batch& batch,
                                         const HeadRequest& request, Arena& arena,
                                         HeadStatistics& statistics);

/// d_hidden is written, weight_grad accumulates. Parts of d_output [tokens] may be undefined: zero.
void linear_cross_entropy_backward(const Tensor& hidden, const Tensor& weight, const Batch& batch,
                                   const HeadStatistics& statistics, const LanguageModelOutput& d_output,
                                   Arena& arena, Tensor& d_hidden, Tensor& weight_grad);

/// Both of the above in one pass, for a gradient d_log_prob [tokens] that is known beforehand.
LanguageModelOutput linear_cross_entropy_forward_backward(const Tensor& hidden, const Tensor& weight,
                                                          const Batch& batch, const Tensor& d_log_prob,
                                                          const HeadRequest& request, Arena& arena,
                                                          Tensor& d_hidden, Tensor& weight_grad);

}  // namespace mgfl::model
