/// From sampled responses to what the engine and the advantage estimators take.
// Mirrors the batch that verl.trainer.ppo.ray_trainer builds from a rollout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mgfl/engine/batch.hpp"

namespace mgfl::rl {

/// Each prompt `n` times in a row: the prompts of groups of n responses.
std::vector<std::vector<std::int64_t>> repeat_interleave(std::span<const std::vector<std::int64_t>> prompts,
                                                         std::int64_t n);

/// Prompt and response of each sequence, laid end to end. Labels are next tokens; loss_mask is 1 on the
/// positions that predict a response token: the prompt's last and all of the response but its last. UserError
/// where the numbers differ, and for an empty prompt, which leaves no position to predict the first token.
Batch rollout_batch(std::span<const std::vector<std::int64_t>> prompts,
                    std::span<const std::vector<std::int64_t>> responses);

/// fp64 [tokens]: each sequence's score at its last position inside the mask, 0 elsewhere. UserError where
/// the number of scores differs, and for a sequence without such a position, whose score would be lost.
Tensor token_level_scores(std::span<const double> scores, const Tensor& response_mask,
                          const Tensor& cu_seqlens);

}  // namespace mgfl::rl
