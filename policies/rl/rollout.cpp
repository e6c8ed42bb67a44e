#include "policies/rl/rollout.hpp"

#include <algorithm>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/rl/response_tokens.hpp"

namespace mgfl::rl {

using Sequences = std::vector<std::vector<std::int64_t>>;

Sequences repeat_interleave(std::span<const std::vector<std::int64_t>> prompts, std::int64_t n) {
  check_user(n >= 1, "each prompt ", n, " times; ask for at least one response.");
  Sequences repeated;
  for (const auto& prompt : prompts) repeated.insert(repeated.end(), static_cast<std::size_t>(n), prompt);
  return repeated;
}

Batch rollout_batch(std::span<const std::vector<std::int64_t>> prompts,
                    std::span<const std::vector<std::int64_t>> responses) {
  check_user(prompts.size() == responses.size(), "rollout: ", responses.size(), " responses to ",
             prompts.size(), " prompts; give one prompt for each response.");
  Sequences sequences(prompts.begin(), prompts.end());
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    check_user(!sequences[s].empty(), "rollout: prompt ", s, " is empty; give it at least one token.");
    sequences[s].insert(sequences[s].end(), responses[s].begin(), responses[s].end());
  }
  auto batch = batch_of(sequences);
  batch.labels = next_tokens(batch.input_ids, batch.cu_seqlens);
  batch.loss_mask = zeros({batch.num_tokens()}, at::kFloat);
  auto* mask = batch.loss_mask.data_ptr<float>();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    std::fill_n(mask + prompts[s].size() - 1, responses[s].size(), 1.0f);
    mask += sequences[s].size();
  }
  return batch;
}

Tensor token_level_scores(std::span<const double> scores, const Tensor& response_mask,
                          const Tensor& cu_seqlens) {
  const auto tokens = response_tokens(response_mask, cu_seqlens);
  check_user(static_cast<std::int64_t>(scores.size()) == tokens.num_sequences(), "rollout: ", scores.size(),
             " scores for ", tokens.num_sequences(), " sequences; give one for each.");
  auto rewards = zeros({tokens.packed_tokens}, at::kDouble);
  auto* reward = rewards.data_ptr<double>();
  const auto* position = tokens.positions.const_data_ptr<std::int64_t>();
  const auto* length = tokens.lengths.const_data_ptr<double>();
  for (std::size_t s = 0; s < scores.size(); ++s) {
    check_user(length[s] > 0, "rollout: sequence ", s,
               " has no response token that could carry its score; leave it out.");
    position += static_cast<std::int64_t>(length[s]);
    reward[position[-1]] = scores[s];
  }
  return rewards;
}

}  // namespace mgfl::rl
