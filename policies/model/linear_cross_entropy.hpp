/// Log-probabilities, entropies and their gradients straight from the head's input, in row chunks: logits are
/// never stored whole. The vocabulary may be split over tensor-parallel ranks.
// Mirrors verl's linear_cross_entropy, with a temperature for each token.
#pragma once

#include "mgfl/engine/outputs.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"
#include "policies/model/arena.hpp"

namespace mgfl::model {

/// The rows of a language-model head that a rank computes with: its share of the vocabulary without padding,
/// so that padding takes no part in any softmax.
struct VocabShard {
  Tensor weight;       // [columns, hidden]; possibly no column
  Tensor weight_grad;  // [columns, hidden] of main dtype; not looked at by the forward pass
  std::int64_t first_column = 0;
  std::int64_t vocab_size = 0;                           // of all ranks together
  const parallel::TensorParallelGroup* group = nullptr;  // null: this rank has the whole vocabulary
};

/// What the forward pass leaves to the backward pass, [tokens] in the arena.
struct HeadStatistics {
  Tensor log_normalizer;  // log of the sum of exponentials of the logits that the kernels saw
  Tensor entropy;
  Tensor sum_pi_squared;  // undefined unless asked for
  Tensor mean_log_probs;  // undefined unless asked for
};

/// 1 / temperature of every token, [tokens]; the floor is verl's.
Tensor logit_scale(const Batch& batch, at::ScalarType dtype);

/// log p(label), and what else is asked for, of each position, over logits / temperature. hidden
/// [tokens, hidden], the same on every rank of the group; so are the results. Collective.
LanguageModelOutput linear_cross_entropy(const Tensor& hidden, const VocabShard& head, const Batch& batch,
                                         const HeadRequest& request, Arena& arena,
                                         HeadStatistics& statistics);

/// d_hidden is written: this rank's summand of the gradient. head.weight_grad accumulates. Parts of d_output
/// [tokens] may be undefined: zero. Collective.
void linear_cross_entropy_backward(const Tensor& hidden, const VocabShard& head, const Batch& batch,
                                   const HeadStatistics& statistics, const LanguageModelOutput& d_output,
                                   Arena& arena, Tensor& d_hidden);

/// Both of the above in one pass, for a gradient d_log_prob [tokens] that is known beforehand.
LanguageModelOutput linear_cross_entropy_forward_backward(const Tensor& hidden, const VocabShard& head,
                                                          const Batch& batch, const Tensor& d_log_prob,
                                                          const HeadRequest& request, Arena& arena,
                                                          Tensor& d_hidden);

}  // namespace mgfl::model
