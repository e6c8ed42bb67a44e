/// What goes into the engine and what comes out: packed token batches, per-token outputs, (sum, count)
/// losses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// Label value of a position that predicts nothing.
inline constexpr std::int64_t ignore_index = -100;

/// Sequences one after the other, without padding. Attention stays inside each.
struct Batch {
  Tensor input_ids;     // int64 [tokens]
  Tensor labels;        // int64 [tokens]: the token that this position predicts, or ignore_index
  Tensor loss_mask;     // fp32 [tokens]: weight of the position in the loss
  Tensor cu_seqlens;    // int32 [sequences + 1], from 0 to tokens
  Tensor position_ids;  // int64 [tokens]; undefined: 0, 1, ... in each sequence
  Tensor temperature;   // fp64 [tokens]; undefined: 1

  std::int64_t num_tokens() const { return input_ids.defined() ? input_ids.numel() : 0; }
  std::int64_t num_sequences() const { return cu_seqlens.defined() ? cu_seqlens.numel() - 1 : 0; }
};

/// Sequences [first, last) of a batch, as views; cu_seqlens starts again at 0.
Batch sequences_of(const Batch& batch, std::int64_t first, std::int64_t last);

/// Sequences [first_sequence, first_sequence + n) of a batch, tokens from first_token on.
struct MicroBatch {
  Batch batch;
  std::int64_t first_sequence = 0;
  std::int64_t first_token = 0;
};

/// Per-token results of the language-model head, fp32 (fp64 in the Fp64 policy), [tokens].
struct HeadOutput {
  Tensor log_probs;
  Tensor entropy;  // undefined unless asked for
};

/// What a loss closure sees of one micro-batch. log_probs and entropy are leaves: whatever the closure
/// computes from them is differentiated.
struct LossInput {
  Tensor log_probs;
  Tensor entropy;
  const Batch& batch;
};

/// One loss or metric as a sum and the count to divide by. The one division happens after both are summed
/// over micro-batches and data-parallel ranks.
struct LossTerm {
  std::string name;
  Tensor sum;  // scalar
  double count = 0;
  bool is_loss = true;  // enters the gradient; false: reported only
};

using LossTerms = std::vector<LossTerm>;

/// Result of forward_backward_batch. Per-token tensors are in the batch's order.
struct BatchResult {
  struct Metric {
    std::string name;
    double sum = 0, count = 0;  // over all data-parallel ranks
    double value() const { return count > 0 ? sum / count : 0.0; }
  };
  std::vector<Metric> metrics;  // the first is the main loss
  Tensor log_probs, entropy;    // [tokens] of this rank's batch
  std::int64_t tokens = 0;      // tokens that went through the model, over all data-parallel ranks

  double loss() const { return metrics.empty() ? 0.0 : metrics.front().value(); }
};

/// Outcome of an optimizer step. A skipped step is a result, not an error.
struct StepResult {
  bool stepped = false;
  bool found_inf = false;
  double grad_norm = 0;         // before clipping; NaN where found_inf
  std::int64_t num_zeros = -1;  // -1: not counted
  double loss_scale = 1;
};

/// Throws UserError unless cu_seqlens runs from 0 to the number of tokens without falling.
void validate_borders(const Batch& batch);

/// Throws UserError unless the batch is well formed and every id lies in [0, vocab_size).
void validate(const Batch& batch, std::int64_t vocab_size);

/// Cuts a batch into micro-batches of whole sequences, in order: at most `micro_batch_size` sequences each,
/// or at most `max_tokens` tokens each where max_tokens > 0 (a hard cap; a longer sequence is a UserError).
std::vector<MicroBatch> split_micro_batches(const Batch& batch, std::int64_t micro_batch_size,
                                            std::int64_t max_tokens);

}  // namespace mgfl
