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
#include "policies/optimizer/sharding.hpp"
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

  /// Sums the gradients over the data-parallel group, those that this rank updates. Collective.
  void reduce_grads() { Sharding::reduce_grads(*buffer_, *data_parallel_group_); }

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
    auto shard = buffer_->shard();
    inner_.step(shard, param_groups, clip < 1.0 ? clip : 1.0);
    Sharding::gather_values(*buffer_, *data_parallel_group_);
    result.stepped = true;
    return result;
  }

  /// 2-norm of the reduced gradients as they are now; a logical parameter counts once. The norm of the
  /// parameters' norms, so that its value hardly depends on where shards end. Collective.
  double grad_norm() {
    auto squares = zeros({static_cast<std::int64_t>(buffer_->params.size())}, at::kDouble);
    for (std::size_t i = 0; i < buffer_->params.size(); ++i) {
      const auto grad = buffer_->counted(buffer_->main_grads, i);
      if (grad.numel() == 0) continue;
      const double norm = get_grad_norm_fp32(grad);
      squares.template mutable_data_ptr<double>()[i] = norm * norm;
    }
    Sharding::sum_over_shards(squares, *data_parallel_group_);
    return get_grad_norm_fp32(squares.sqrt(), 2.0, get_grad_stats_parallel_group());
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

  std::int64_t num_zeros() const {
    std::int64_t own = 0;
    for (std::size_t i = 0; i < buffer_->params.size(); ++i) {
      const auto grad = buffer_->counted(buffer_->main_grads, i);
      own += grad.numel() - grad.count_nonzero().template item<std::int64_t>();
    }
    auto count = zeros({1}, at::kLong).fill_(own);
    Sharding::sum_over_shards(count, *data_parallel_group_);
    for (C* group : grad_stats_parallel_group_) group->all_reduce(count, ReduceOp::sum);
    return count.template item<std::int64_t>();
  }

  OptimizerConfig config_;
  ParamBuffer* buffer_;
  parallel::GroupList<C> grad_stats_parallel_group_;
  C* data_parallel_group_;
  parallel::TensorParallelGroup tensor_parallel_group_;
  Kind inner_;
  Scaler scaler_;
  Tensor unscaled_;  // what the last _collect_main_grad_data_for_unscaling gave out
};

}  // namespace mgfl::optimizer
