#include "policies/optimizer/sgd.hpp"

#include "mgfl/tensor/factory.hpp"

namespace mgfl::optimizer {

Sgd::Sgd(const ParamBuffer& buffer, const OptimizerConfig& config)
    : momentum_(config.sgd_momentum), segments_(segments_of(buffer, config)) {
  if (momentum_ > 0) momentum_buffer = zeros({buffer.main_params.numel()}, buffer.main_params.scalar_type());
}

void Sgd::to(c10::DeviceType device) {
  if (momentum_buffer.defined()) momentum_buffer = momentum_buffer.to(c10::Device(device));
}

void Sgd::step(Shard& shard, const std::vector<ParamGroup>& groups, double grad_scale) {
  for (const auto& segment : segments_) {
    const auto cut = [&](const Tensor& flat) {
      return flat.narrow(0, segment.begin, segment.end - segment.begin);
    };
    const auto& group = groups[segment.group];
    auto weights = cut(shard.main_params);
    auto direction = cut(shard.main_grads).mul(grad_scale).add_(weights, group.weight_decay);
    if (momentum_buffer.defined()) direction = cut(momentum_buffer).mul_(momentum_).add_(direction);
    weights.sub_(direction, group.lr);
  }
  if (shard.values.scalar_type() != shard.main_params.scalar_type()) shard.values.copy_(shard.main_params);
}

}  // namespace mgfl::optimizer
