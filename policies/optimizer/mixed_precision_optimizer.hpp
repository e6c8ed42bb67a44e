/// One optimizer step over all parameters of a rank: unscale, look for non-finite gradients, clip, update,
/// round. Mirrors megatron.core.optimizer.optimizer.MixedPrecisionOptimizer.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "mgfl/engine/outputs.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/optimizer/adamw.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/grad_scaler.hpp"
#include "policies/optimizer/precision.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"

namespace mgfl::optimizer {

/// Works on the flat buffers of `ParamBuffer`. One scaler and one global found_inf for all parameters: a step
/// that meets a non-finite gradient on any rank is skipped on all, and changes nothing but the scaler.
template <Precision P, parallel::Communicator C, FlatOptimizer Kind = AdamW>
class MixedPrecisionOptimizer : public Optimizer {
 public:
  using communicator_type = C;

  /// Borrows `buffer` and the groups, which must outlive the optimizer. The ranks of
  /// grad_stats_parallel_group hold different parameters: norms are summed over them. The ranks of
  /// data_parallel_group hold the same ones. Collective over a list of several groups, which are axes of
  /// one grid, see parallel::check_axes_of_a_grid.
  MixedPrecisionOptimizer(ParamBuffer& buffer, const OptimizerConfig& config,
                          parallel::GroupList<C> grad_stats_parallel_group, C* data_parallel_group)
      : config_(config),
        buffer_(&buffer),
        grad_stats_parallel_group_(std::move(grad_stats_parallel_group)),
        data_parallel_group_(data_parallel_group),
        inner_(buffer, config),
        scaler_(make_scaler(config)) {
    param_groups = Kind::param_groups(config);
    parallel::check_axes_of_a_grid(grad_stats_parallel_group_);
  }

  double loss_scale() const {
    return std::visit([](const auto& scaler) { return static_cast<double>(scaler.scale()); }, scaler_);
  }

  /// Moves main weights and the optimizer's state to a kind of device.
  void to(c10::DeviceType device) {
    move_main_params(*buffer_, device);
    inner_.to(device);
  }

  void zero_grad() { buffer_->main_grads.zero_(); }

  /// Divides main gradients by the loss scale; true if any was NaN or infinite on any rank of the groups.
  bool _unscale_main_grads_and_check_for_nan() { return unscale_main_grads(*this); }

  /// The whole step, in Megatron's order. Gradients are means already (the engine's one division).
  StepResult step() {
    StepResult result;
    result.loss_scale = loss_scale();
    result.found_inf = any_data_parallel_rank(_unscale_main_grads_and_check_for_nan());
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
    return get_grad_norm_fp32(grads, 2.0, get_grad_stats_parallel_group());
  }

  // What the bodies of _unscale_main_grads_and_check_for_nan may ask for.
  bool is_stub_optimizer() const { return buffer_->params.empty(); }
  std::span<const Tensor> _collect_main_grad_data_for_unscaling() const { return {&buffer_->main_grads, 1}; }
  double inv_scale() const {
    return std::visit([](const auto& scaler) { return static_cast<double>(scaler.inv_scale()); }, scaler_);
  }
  const parallel::GroupList<C>& get_grad_stats_parallel_group() const { return grad_stats_parallel_group_; }

  Tensor& main_grads() { return buffer_->main_grads; }

  Kind& inner() { return inner_; }
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

  /// Data-parallel ranks reduced their gradients, so they should agree; this makes sure that they skip
  /// together.
  bool any_data_parallel_rank(bool found_inf) {
    auto flag = zeros({1}, at::kFloat).fill_(found_inf ? 1.0 : 0.0);
    data_parallel_group_->all_reduce(flag, ReduceOp::max);
    return flag.template item<float>() > 0;
  }

  std::int64_t num_zeros() const {
    std::int64_t zeros = 0;
    for (const auto& param : buffer_->params)
      zeros += param.main_grad->numel() - param.main_grad->count_nonzero().template item<std::int64_t>();
    return zeros;
  }

  OptimizerConfig config_;
  ParamBuffer* buffer_;
  parallel::GroupList<C> grad_stats_parallel_group_;
  C* data_parallel_group_;
  Kind inner_;
  Scaler scaler_;
};

}  // namespace mgfl::optimizer
