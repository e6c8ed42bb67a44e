#include "policies/optimizer/flat_optimizer.hpp"

namespace mgfl::optimizer {

std::vector<Segment> decay_segments(const ParamBuffer& buffer) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < buffer.params.size(); ++i) {
    const auto end = i + 1 < buffer.params.size() ? buffer.offsets[i + 1] : buffer.numel;
    const std::size_t group = buffer.params[i].desc->weight_decay ? 0 : 1;
    if (!segments.empty() && segments.back().group == group)
      segments.back().end = end;
    else
      segments.push_back({buffer.offsets[i], end, group});
  }
  return segments;
}

std::vector<ParamGroup> decay_groups(const OptimizerConfig& config) {
  return {{config.lr, config.weight_decay, 1.0, {}, {}}, {config.lr, 0.0, 0.0, {}, {}}};
}

}  // namespace mgfl::optimizer
