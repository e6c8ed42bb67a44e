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
#include "mgfl/parallel/staging.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/optimizer/adamw.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/grad_scaler.hpp"
#include "policies/optimizer/precision.hpp"
#include "policies/optimizer/sharding.hpp"
#include "policies/optimizer/skipped_steps.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"

namespace mgfl::optimizer {

/// Works on this rank's part of the flat buffers of `ParamBuffer`; `Sharding` deals the parts (sharding.hpp).
/// One scaler and one global found_inf for all parameters: a step
/// that meets a non-finite gradient on any rank is skipped on all, and changes nothing but the scaler.
template <Precision P, parallel::Communicator C, FlatOptimizer Kind = AdamW, class Sharding = Replicated>
class MixedPrecisionOptimizer : public Optimizer {
 public:
  using communicator_type = C;

  /// Borrows `buffer` and the groups, which must outlive the optimizer. The ranks of
  /// grad_stats_parallel_group hold different parameters: norms are summed over them. The ranks of
  /// data_parallel_group hold the same ones, and share the work; those of tensor_parallel_group hold parts of
  /// them. Collective over a list of several groups,
  /// which are axes of one grid, see parallel::check_axes_of_a_grid.
  MixedPrecisionOptimizer(ParamBuffer& buffer, const OptimizerConfig& config,
                          parallel::GroupList<C> grad_stats_parallel_group, C* data_parallel_group,
                          parallel::TensorParallelGroup tensor_parallel_group = {})
      : config_(config),
        buffer_(&buffer),
        grad_stats_parallel_group_(std::move(grad_stats_parallel_group)),
        data_parallel_group_(data_parallel_group),
        tensor_parallel_group_(tensor_parallel_group),
        inner_(buffer, config),
        scaler_(make_scaler(config)),
        skipped_(config.max_skipped_steps) {
    check_config(config);
    check_overrides_fit(buffer.params, config);
    param_groups = Kind::param_groups(config);
    lr = config.lr;
    min_lr = config.min_lr;
    weight_decay = config.weight_decay;
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

  /// Sums the gradients over the data-parallel group, those that this rank updates. Collective.
  void reduce_grads() { Sharding::reduce_grads(*buffer_, *data_parallel_group_); }

  /// Divides main gradients by the loss scale; true if any was NaN or infinite on any rank of the groups.
  bool _unscale_main_grads_and_check_for_nan() { return unscale_main_grads(*this); }

  /// The whole step, in Megatron's order. Gradients are means already (the engine's one division). It is
  /// skipped, which leaves weights and state as they were and the scaler alone counting, where a gradient is
  /// not finite (found_inf) or the norm is above grad_norm_skip_threshold (not found_inf, but the norm is
  /// there). RunError on every rank after max_skipped_steps of them in a row.
  StepResult step() {
    StepResult result;
    result.loss_scale = loss_scale();
    result.found_inf = any_data_parallel_rank(_unscale_main_grads_and_check_for_nan());
    const bool can_shrink = std::visit([](const auto& scaler) { return scaler.can_shrink(); }, scaler_);
    std::visit([&](auto& scaler) { scaler.update(result.found_inf); }, scaler_);
    if (result.found_inf) {
      result.grad_norm = std::numeric_limits<double>::quiet_NaN();
      if (can_shrink)
        skipped_.reset();
      else
        skipped_.not_finite(result.loss_scale);
      return result;
    }
    result.grad_norm = grad_norm();
    if (config_.log_num_zeros_in_grad) result.num_zeros = num_zeros();
    // A sum of powers may overflow where no gradient does, and such a norm would clip everything to nothing.
    if (!std::isfinite(result.grad_norm) || result.grad_norm > config_.grad_norm_skip_threshold) {
      skipped_.too_long(result.grad_norm, config_.grad_norm_skip_threshold);
      return result;
    }
    skipped_.reset();
    const double clip = config_.clip_grad > 0 ? config_.clip_grad / (result.grad_norm + 1e-6) : 1.0;
    auto shard = buffer_->shard();
    inner_.step(shard, param_groups, clip < 1.0 ? clip : 1.0);
    Sharding::gather_values(*buffer_, *data_parallel_group_);
    result.stepped = true;
    return result;
  }

  /// Norm of the reduced gradients as they are now, of the config's type; a logical parameter counts once.
  /// The p-norm of the parameters' p-norms, which is that of all their elements, so that its value hardly
  /// depends on where shards end. Collective.
  double grad_norm() {
    const double p = config_.grad_norm_type;
    auto powers = zeros({static_cast<std::int64_t>(buffer_->params.size())}, at::kDouble);
    auto* const numbers = powers.template mutable_data_ptr<double>();
    for (std::size_t i = 0; i < buffer_->params.size(); ++i) {
      const auto grad = counted_grad(i);
      if (grad.numel() == 0) continue;
      const double norm = get_grad_norm_fp32(grad, p);
      numbers[i] = p == 2.0 ? norm * norm : std::isinf(p) ? norm : std::pow(norm, p);
    }
    Sharding::reduce_over_shards(powers, norm_reduce_op(p), *data_parallel_group_);
    for (std::size_t i = 0; i < buffer_->params.size(); ++i) numbers[i] = norm_from_power(numbers[i], p);
    return get_grad_norm_fp32(powers, p, get_grad_stats_parallel_group());
  }

  // What the bodies of _unscale_main_grads_and_check_for_nan may ask for.
  bool is_stub_optimizer() const { return buffer_->begin == buffer_->end; }
  std::span<const Tensor> _collect_main_grad_data_for_unscaling() {
    unscaled_ = main_grads();
    return {&unscaled_, 1};
  }
  double inv_scale() const {
    return std::visit([](const auto& scaler) { return static_cast<double>(scaler.inv_scale()); }, scaler_);
  }
  const parallel::GroupList<C>& get_grad_stats_parallel_group() const { return grad_stats_parallel_group_; }

  /// The gradients that this rank updates with, flat: all of them, or its shard's.
  Tensor main_grads() const { return buffer_->owned(buffer_->main_grads); }

  /// A state of this optimizer's (main weights, a moment) as logical parameters. `scratch`: another one's, to
  /// share its memory.
  WholeParams whole_params(const Tensor& state, const WholeParams::Scratch& scratch = {}) {
    return WholeParams(*buffer_, state, tensor_parallel_group_, scratch);
  }
  WholeParams whole_main_params() { return whole_params(buffer_->main_params); }

  /// Makes the value of one logical parameter: the first data-parallel rank of each part gets it from the
  /// shards of all, then these ranks from each other's parts. Collective over both groups.
  void gather(WholeParams& whole, std::size_t param) {
    const auto& local = whole.local();
    if (local.is_shard()) {
      auto value = local.params()[param].value->view({-1});
      Sharding::gather_state(*buffer_, local.state(), buffer_->offsets[param], value, *data_parallel_group_);
    }
    if (data_parallel_group_->rank() == 0) whole.gather_parts(param);
  }

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

  /// This rank's part of a parameter's gradient, flat and possibly empty, as norms and zeros count it.
  Tensor counted_grad(std::size_t param) const { return buffer_->counted(buffer_->main_grads, param); }

  /// Elements that are 0, over all ranks, as the norm counts them. Collective.
  std::int64_t num_zeros() {
    std::int64_t own = 0;
    for (std::size_t i = 0; i < buffer_->params.size(); ++i) {
      const auto grad = counted_grad(i);
      own += grad.numel() - grad.count_nonzero().template item<std::int64_t>();
    }
    auto count = zeros({1}, at::kLong).fill_(own);
    Sharding::reduce_over_shards(count, ReduceOp::sum, *data_parallel_group_);
    for (C* group : grad_stats_parallel_group_) parallel::all_reduce_staged(count, ReduceOp::sum, *group);
    return count.template item<std::int64_t>();
  }

  OptimizerConfig config_;
  ParamBuffer* buffer_;
  parallel::GroupList<C> grad_stats_parallel_group_;
  C* data_parallel_group_;
  parallel::TensorParallelGroup tensor_parallel_group_;
  Kind inner_;
  Scaler scaler_;
  SkippedSteps skipped_;
  Tensor unscaled_;  // what the last _collect_main_grad_data_for_unscaling gave out
};

}  // namespace mgfl::optimizer
