/// One optimizer step over all parameters of a rank: unscale, look for non-finite gradients, clip, update, round.
/// Mirrors megatron.core.optimizer.optimizer.MixedPrecisionOptimizer.
#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "mgfl/engine/batch.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/communicator_archetype.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/optimizer/adamw.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/grad_math.hpp"
#include "policies/optimizer/grad_scaler.hpp"
#include "policies/optimizer/precision.hpp"

namespace mgfl {

namespace optimizer {

/// Works on the flat buffers of `ParamBuffer`. One scaler and one global found_inf for all parameters: a step that meets a
/// non-finite gradient on any rank is skipped on all, and changes nothing but the scaler.
template <Precision P, parallel::Communicator C>
class MixedPrecisionOptimizer : public Optimizer {
 public:
  /// Borrows `buffer` and the groups, which must outlive the optimizer. The ranks of grad_stats_parallel_group hold different
  /// parameters: norms are summed over them. The ranks of data_parallel_group hold the same ones.
  MixedPrecisionOptimizer(ParamBuffer& buffer, const OptimizerConfig& config, std::vector<C*> grad_stats_parallel_group,
                          C* data_parallel_group)
      : config_(config),
        buffer_(&buffer),
        grad_stats_parallel_group_(std::move(grad_stats_parallel_group)),
        data_parallel_group_(data_parallel_group),
        inner_(buffer, config),
        scaler_(make_scaler(config)) {
    param_groups = AdamW::param_groups(config);
  }

  double loss_scale() const {
    return std::visit([](const auto& scaler) { return static_cast<double>(scaler.scale()); }, scaler_);
  }

  void zero_grad() { buffer_->main_grads.zero_(); }

  /// Divides main gradients by the loss scale; true if any was NaN or infinite on any rank of the groups.
  bool _unscale_main_grads_and_check_for_nan() {
    return dispatch_family<targets::unscale_main_grads, MixedPrecisionOptimizer>(*this);
  }

  /// The whole step, in Megatron's order. Gradients are means already (the engine's one division).
  StepResult step() {
    StepResult result;
    result.loss_scale = loss_scale();
    result.found_inf = _unscale_main_grads_and_check_for_nan();
    std::visit([&](auto& scaler) { scaler.update(result.found_inf); }, scaler_);
    if (result.found_inf) {
      result.grad_norm = std::numeric_limits<double>::quiet_NaN();
      return result;
    }
    result.grad_norm = grad_norm();
    const double clip = config_.clip_grad > 0 ? config_.clip_grad / (result.grad_norm + 1e-6) : 1.0;
    if (config_.log_num_zeros_in_grad) result.num_zeros = num_zeros();
    inner_.step(*buffer_, param_groups, clip < 1.0 ? clip : 1.0);
    result.stepped = true;
    return result;
  }

  /// 2-norm of the gradients as they are now; a logical parameter counts once.
  double grad_norm() {
    std::vector<Tensor> grads;
    for (const auto& param : buffer_->params) grads.push_back(*param.main_grad);
    return clip_grads::get_grad_norm_fp32<C>(grads, 2.0, std::span<C* const>(grad_stats_parallel_group_));
  }

  Tensor& main_grads() { return buffer_->main_grads; }
  double inv_loss_scale() const {
    return std::visit([](const auto& scaler) { return static_cast<double>(scaler.inv_scale()); }, scaler_);
  }
  const std::vector<C*>& get_grad_stats_parallel_group() const { return grad_stats_parallel_group_; }
  C* get_data_parallel_group() const { return data_parallel_group_; }

  AdamW& inner() { return inner_; }
  ParamBuffer& buffer() { return *buffer_; }

  GradScalerState scaler_state() const {
    return std::visit([](const auto& scaler) -> GradScalerState { return scaler.state(); }, scaler_);
  }
  void load_scaler_state(const GradScalerState& saved) {
    std::visit([&](auto& scaler) { scaler.load_state(saved); }, scaler_);
  }

 private:
  using Scaler = std::variant<ConstantGradScaler, DynamicGradScaler>;

  static Scaler make_scaler(const OptimizerConfig& config) {
    if constexpr (!P::scales_loss) return ConstantGradScaler(1.0);
    if (config.loss_scale) return ConstantGradScaler(*config.loss_scale);
    DynamicGradScalerConfig dynamic;
    dynamic.initial_scale = config.initial_loss_scale;
    dynamic.min_scale = config.min_loss_scale;
    dynamic.growth_interval = config.loss_scale_window;
    dynamic.hysteresis = config.hysteresis;
    return DynamicGradScaler(dynamic);
  }

  std::int64_t num_zeros() const {
    std::int64_t zeros = 0;
    for (const auto& param : buffer_->params) zeros += count_zeros(*param.main_grad);
    return zeros;
  }

  OptimizerConfig config_;
  ParamBuffer* buffer_;
  std::vector<C*> grad_stats_parallel_group_;
  C* data_parallel_group_;
  AdamW inner_;
  Scaler scaler_;
};

}  // namespace optimizer

/// MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan, a family over the class of `self`.
template <>
struct implementation<targets::unscale_main_grads, vendors::original> {
  using archetype = optimizer::MixedPrecisionOptimizer<optimizer::Fp32, parallel::communicator_archetype>;

  template <class Self>
  static bool call(Self& self) {
    const bool finite = optimizer::scale_and_check_finite(self.main_grads(), self.inv_loss_scale());
    auto found_inf = zeros({1}, at::kFloat).fill_(finite ? 0.0 : 1.0);
    for (auto* group : self.get_grad_stats_parallel_group()) group->all_reduce(found_inf, ReduceOp::max);
    // Data-parallel ranks reduced their gradients, so they should agree; one more reduction makes sure that they skip together.
    self.get_data_parallel_group()->all_reduce(found_inf, ReduceOp::max);
    return found_inf.template item<float>() > 0;
  }
};

}  // namespace mgfl
