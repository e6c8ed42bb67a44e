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

/// The segments of this rank's shard, counted from its begin: group 0 for parameters that decay (matrices,
/// embeddings), group 1 for the others (norms, biases).
std::vector<Segment> decay_segments(const ParamBuffer& buffer);

/// Group 0 with the config's weight decay, group 1 with none.
std::vector<ParamGroup> decay_groups(const OptimizerConfig& config);

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
