#include "policies/optimizer/adamw.hpp"

#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels.hpp"

namespace mgfl::optimizer {

AdamW::AdamW(const ParamBuffer& buffer, const OptimizerConfig& config)
    : config_(config), segments_(segments_of(buffer, config)) {
  if (config.optimizer == OptimizerKind::sgd) {
    sgd.emplace(buffer, config);
    return;
  }
  for (auto* state : {&exp_avg, &exp_avg_sq})
    *state = zeros({buffer.main_params.numel()}, buffer.main_params.scalar_type());
}

void AdamW::to(c10::DeviceType device) {
  if (sgd) return sgd->to(device);
  for (auto* state : {&exp_avg, &exp_avg_sq}) *state = state->to(c10::Device(device));
}

std::vector<std::pair<const char*, Tensor>> AdamW::states() const {
  if (!sgd) return {{"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}};
  if (!sgd->momentum_buffer.defined()) return {};
  return {{"momentum_buffer", sgd->momentum_buffer}};
}

void AdamW::step(Shard& shard, const std::vector<ParamGroup>& groups, double grad_scale) {
  ++updates;
  if (sgd) return sgd->step(shard, groups, grad_scale);
  const bool rounds = shard.values.scalar_type() != shard.main_params.scalar_type();
  for (const auto& segment : segments_) {
    const auto cut = [&](const Tensor& flat) {
      return flat.narrow(0, segment.begin, segment.end - segment.begin);
    };
    auto main_param = cut(shard.main_params), exp_avg_cut = cut(exp_avg), exp_avg_sq_cut = cut(exp_avg_sq);
    auto model_param = rounds ? cut(shard.values) : Tensor();
    const auto& group = groups[segment.group];
    kernels::adamw_step(main_param, cut(shard.main_grads), exp_avg_cut, exp_avg_sq_cut, model_param,
                        {group.lr, config_.adam_beta1, config_.adam_beta2, config_.adam_eps,
                         group.weight_decay, updates, grad_scale});
  }
}

}  // namespace mgfl::optimizer
