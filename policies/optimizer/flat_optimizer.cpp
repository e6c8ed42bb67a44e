#include "policies/optimizer/flat_optimizer.hpp"

#include <algorithm>

namespace mgfl::optimizer {

std::vector<Segment> decay_segments(const ParamBuffer& buffer) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < buffer.params.size(); ++i) {
    const auto next = i + 1 < buffer.params.size() ? buffer.offsets[i + 1] : buffer.numel;
    const auto begin = std::max(buffer.offsets[i], buffer.begin) - buffer.begin;
    const auto end = std::min(next, buffer.end) - buffer.begin;
    if (begin >= end) continue;
    const std::size_t group = buffer.params[i].desc->weight_decay ? 0 : 1;
    if (!segments.empty() && segments.back().group == group)
      segments.back().end = end;
    else
      segments.push_back({begin, end, group});
  }
  return segments;
}

std::vector<ParamGroup> decay_groups(const OptimizerConfig& config) {
  return {{config.lr, config.weight_decay, 1.0, {}, {}}, {config.lr, 0.0, 0.0, {}, {}}};
}

}  // namespace mgfl::optimizer
