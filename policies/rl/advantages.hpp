/// Advantages of responses, on packed sequences: GAE, GRPO, RLOO, OPO, REINFORCE++ and its baseline form.
/// Mirrors the estimators of verl.trainer.ppo.core_algos.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::rl {

/// Rewards of packed sequences: of responses alone, or of prompts and responses where the mask is 0 on
/// prompts. A 0 inside a response is an observation, which the estimators skip.
struct Responses {
  Tensor token_level_rewards;  // [tokens]
  Tensor response_mask;        // [tokens], 0 or 1
  Tensor cu_seqlens;           // int32 [sequences + 1]
};

/// fp64 [tokens]. 0 outside the mask, but for GAE, where these are verl's values; no loss reads them.
struct Advantages {
  Tensor advantages;
  Tensor returns;
};

/// Sums whitening's totals, fp64 [3], over the data-parallel group, in place:
/// `[&](Tensor& totals) { group.all_reduce(totals, ReduceOp::sum); }`. Every rank must call, with no sequence
/// too.
using ReduceTotals = std::optional<function_ref<void(Tensor&)>>;

/// Sum, sum of squares and number of the values inside the mask: fp64 [3].
Tensor masked_totals(const Tensor& values, const Tensor& mask);

/// (values - mean) / sqrt(variance + 1e-8) at every position, mean and unbiased variance from `totals`.
/// UserError below two counted values.
Tensor masked_whiten(const Tensor& values, const Tensor& totals);

/// Generalized advantage estimation; `values` [tokens] are the critic's. The returns belong to the advantages
/// before whitening.
Advantages compute_gae_advantage_return(const Responses& responses, const Tensor& values, double gamma,
                                        double lam, bool whiten = true, ReduceTotals reduce = {});

/// The functions below take outcome rewards: a sequence's score is the sum of its token rewards, and
/// sequences with the same number in `index` [sequences] answer one prompt. A group must be whole in one
/// call. A response alone in its group is compared with 0, as in verl.

/// GRPO: (score - mean) / (std + epsilon), std unbiased (1 for a group of one); without the division where
/// norm_adv_by_std_in_grpo is false.
Advantages compute_grpo_outcome_advantage(const Responses& responses, std::span<const std::int64_t> index,
                                          bool norm_adv_by_std_in_grpo = true, double epsilon = 1e-6);

/// RLOO: score - the mean of the others.
Advantages compute_rloo_outcome_advantage(const Responses& responses, std::span<const std::int64_t> index);

/// OPO: score - the mean weighted by response lengths.
Advantages compute_opo_outcome_advantage(const Responses& responses, std::span<const std::int64_t> index);

/// REINFORCE++: discounted rewards-to-go, whitened over all response tokens.
Advantages compute_reinforce_plus_plus_outcome_advantage(const Responses& responses, double gamma,
                                                         ReduceTotals reduce = {});

/// REINFORCE++ with baseline: score - mean of the group, whitened over all response tokens.
Advantages compute_reinforce_plus_plus_baseline_outcome_advantage(const Responses& responses,
                                                                  std::span<const std::int64_t> index,
                                                                  ReduceTotals reduce = {});

}  // namespace mgfl::rl
