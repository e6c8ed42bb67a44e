/// The contract of an optimizer's mathematics: one update of flat buffers, group by group. Clipping, loss
/// scaling and skipped steps are MixedPrecisionOptimizer's.
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "mgfl/policy/optimizer_policy.hpp"
#include "policies/optimizer/param_buffer.hpp"

namespace mgfl::optimizer {

/// Neighbouring elements of a shard that belong to one parameter group.
struct Segment {
  std::int64_t begin = 0, end = 0;
  std::size_t group = 0;
};

/// UserError, naming field and value, for a config that no optimizer can work with.
void check_config(const OptimizerConfig& config);

/// UserError, with the name, for an override that is of none of the model's parameters.
void check_overrides_fit(const std::vector<ParamRef>& params, const OptimizerConfig& config);

/// The parameter groups, the same ones on every rank, whatever parameters it holds. Group 0 has the config's
/// weight decay, group 1 none; two more, likewise, for decoupled_lr and for each of the config's overrides.
std::vector<ParamGroup> param_groups_of(const OptimizerConfig& config);

/// The place of a parameter's group among them. Matrices and embeddings decay, norms and biases do not, but
/// for what the config says of them.
std::size_t group_of(const ParamDesc& desc, const OptimizerConfig& config);

/// The segments of this rank's shard, counted from its begin.
std::vector<Segment> segments_of(const ParamBuffer& buffer, const OptimizerConfig& config);

template <class K>
concept HasParamGroups = requires(const OptimizerConfig& config) {
  { K::param_groups(config) } -> std::same_as<std::vector<ParamGroup>>;
};

/// Updates main weights from main gradients, each multiplied by grad_scale, with each group's lr and weight
/// decay; rounds into `values` where these have another dtype. What becomes of an element must not depend on
/// others, since a shard ends anywhere.
template <class K>
concept HasFlatStep = requires(K& kind, Shard& shard, const std::vector<ParamGroup>& groups) {
  kind.step(shard, groups, double{});
};

template <class K>
concept MovesItsState = requires(K& kind, c10::DeviceType device) {
  kind.to(device);
};

/// AdamW, or an optimizer of one's own. Made from the buffer, whose `main_params` are what it has to update:
/// its state has their size and dtype.
template <class K>
concept FlatOptimizer = std::constructible_from<K, const ParamBuffer&, const OptimizerConfig&> &&
    HasParamGroups<K> && HasFlatStep<K> && MovesItsState<K>;

}  // namespace mgfl::optimizer
