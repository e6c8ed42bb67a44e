/// What goes into the engine: packed sequences with whatever fields a loss wants, cut into micro-batches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mgfl/engine/fields.hpp"
#include "mgfl/engine/token_budget.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// Label value of a position that predicts nothing.
inline constexpr std::int64_t ignore_index = -100;

/// What one batch wants otherwise than EngineConfig says. Not set: as EngineConfig says.
struct BatchOptions {
  std::optional<std::int64_t> micro_batch_size;            // sequences
  std::optional<std::int64_t> max_tokens_per_micro_batch;  // 0: micro-batches by sequences
  std::optional<bool> calculate_entropy, calculate_sum_pi_squared, calculate_mean_log_probs;
  std::optional<bool> use_fused_kernels;
};

/// Sequences one after the other, without padding. Attention stays inside each, and so do labels.
struct Batch {
  Tensor input_ids;     // int64 [tokens]
  Tensor labels;        // int64 [tokens]: the token that this position predicts, or ignore_index; undefined:
                        // the next token of the same sequence
  Tensor loss_mask;     // fp32 [tokens]: weight of the position in the loss; undefined: 1 where there is a
                        // label, 0 elsewhere
  Tensor cu_seqlens;    // int32 [sequences + 1], from 0 to tokens
  Tensor position_ids;  // int64 [tokens]; undefined: 0, 1, ... in each sequence
  Tensor temperature;   // of sampling: [1], [sequences] or [tokens]; undefined: 1; 0 counts as verl's 1e-8

  Fields token_fields = {};     // each [tokens, ...]
  Fields sequence_fields = {};  // each [sequences, ...]
  Tensor groups = {};           // int64 [sequences]: those of one number share a micro-batch; undefined: free
  BatchOptions options = {};

  /// A batch whose own tensors are copies; fields are shared.
  Batch separate() const;

  std::int64_t num_tokens() const { return input_ids.defined() ? input_ids.numel() : 0; }
  std::int64_t num_sequences() const { return cu_seqlens.defined() ? cu_seqlens.numel() - 1 : 0; }
};

/// Sequences laid end to end; every token but a sequence's first is predicted, and counts.
Batch batch_of(std::span<const std::vector<std::int64_t>> sequences);

/// Sequences [first, last) of a batch, as views; cu_seqlens starts again at 0.
Batch sequences_of(const Batch& batch, std::int64_t first, std::int64_t last);

/// Some sequences of a batch, and where their tokens stood in it.
struct MicroBatch {
  Batch batch;
  Tensor places;  // int64 [tokens]
};

/// The sequences of these numbers, in this order, copied. `batch` is a validated one.
MicroBatch select_sequences(const Batch& batch, std::span<const std::int64_t> sequences);

/// The sequences of a global batch that a data-parallel rank takes, in order: dealt by cost, as
/// partition_by_token_budget does it, groups whole. Every rank gives the whole batch, a validated one.
/// UserError where a sequence or a group is longer than the cap.
Batch sequences_of_rank(const Batch& global_batch, const TokenBudget& budget, std::int64_t rank);

/// The length of each sequence.
std::vector<std::int64_t> sequence_lengths(const Batch& batch);

/// labels [tokens]: the token after each position in its own sequence; the last of a sequence predicts
/// nothing.
Tensor next_tokens(const Tensor& input_ids, const Tensor& cu_seqlens);

/// Throws UserError unless cu_seqlens runs from 0 to the number of tokens without falling.
void validate_borders(const Batch& batch);

/// The batch with its labels, mask and temperature [tokens] filled in. UserError unless it is well formed and
/// every id lies in [0, vocab_size). Everything later trusts what comes out of here. A missing mask is 1
/// where there is a label, or everywhere for a head that predicts no tokens.
Batch validated(const Batch& batch, std::int64_t vocab_size, bool predicts_tokens = true);

/// A text that differs where validated batches or their fields do.
std::string describe(const Batch& batch);

/// How a rank's batch is cut: by sequences, or under a cap of tokens.
struct MicroBatchLimits {
  std::int64_t micro_batch_size = 1;            // sequences; not used where the next is set
  std::int64_t max_tokens_per_micro_batch = 0;  // > 0: a hard cap, balanced by the cost of attention
  std::int64_t linear_cost = 24576;             // as TokenBudget's
};

/// Numbers of the sequences of each micro-batch: in order, at most micro_batch_size each, or as
/// partition_by_token_budget deals them. Groups stay whole. At least `at_least` micro-batches, the last ones
/// empty where there is not more. UserError where a sequence or a group is larger than a limit.
std::vector<std::vector<std::int64_t>> micro_batch_sequences(const Batch& batch,
                                                             const MicroBatchLimits& limits,
                                                             std::int64_t at_least);

}  // namespace mgfl
