/// The contract of an optimizer policy: a precision (dtypes and loss scaling) and the optimizer that works on
/// flat buffers, or on this rank's shard of them.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mgfl/parallel/param.hpp"
#include "mgfl/policy/optimizer_base.hpp"

namespace mgfl::optimizer {

/// The mathematics of a step; `adam` is AdamW.
enum class OptimizerKind { adam, sgd };

/// Rates and decay of the parameters whose name fits a pattern.
struct ParamGroupOverride {
  std::string name;                      // Megatron's; each * stands for any text: "decoder.layers.0.*"
  std::optional<double> max_lr, min_lr;  // in place of the schedule's
  std::optional<double> wd_mult;         // multiplies the weight decay; else 1, and 0 for norms and biases
};

/// What a user sets. Names and defaults are Megatron's OptimizerConfig.
struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::adam;
  double lr = 1e-3;  // a schedule without max_lr, min_lr, start_wd and end_wd of its own takes these three
  double min_lr = 0.0;
  double weight_decay = 0.01;
  std::optional<double> decoupled_lr, decoupled_min_lr;  // of embedding and output layer
  bool apply_wd_to_qk_layernorm = false;
  std::vector<ParamGroupOverride> overrides;  // the last one that fits a parameter counts, decoupled_lr first
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;       // longest gradient; 0: no clipping
  double grad_norm_type = 2.0;  // of that length: p of a p-norm, 1 or more, or infinity
  double grad_norm_skip_threshold = std::numeric_limits<double>::infinity();  // longer ones: no step is made
  bool log_num_zeros_in_grad = false;
  // Ends the run with an error after as many skipped steps in a row, overflows that a dynamic loss scale
  // still answers by shrinking not counted; 0: never.
  std::int64_t max_skipped_steps = 20;
  // loss scaling, fp16 only
  std::optional<double> loss_scale;  // set: constant
  double initial_loss_scale = 4294967296.0, min_loss_scale = 1.0;
  std::int64_t loss_scale_window = 1000, hysteresis = 2;
};

template <class P>
concept HasDtypes = requires {
  { P::model_dtype } -> std::convertible_to<c10::ScalarType>;  // weights and activations
  { P::main_dtype } -> std::convertible_to<c10::ScalarType>;   // main weights, gradients, optimizer state
};

template <class P>
concept HasLossScaling = requires {
  { P::scales_loss } -> std::convertible_to<bool>;
};

/// fp64, fp32, bf16 with fp32 main weights, fp16 with a loss scaler.
template <class P>
concept Precision = HasDtypes<P> && HasLossScaling<P>;

template <class O>
concept NamesPrecision = Precision<typename O::precision>;

/// Where weights, main weights and main gradients live: allocate_weights points the parameters at it,
/// allocate_training adds what only training needs on a data-parallel rank of so many, fill_main_params lets
/// a callable write main weights.
template <class O>
concept AllocatesBuffers = requires(std::vector<ParamRef> params, typename O::buffer_type& buffer,
                                    void (&fill)(std::span<const ParamRef>)) {
  { O::allocate_weights(params, c10::ScalarType::Float) } -> std::same_as<typename O::buffer_type>;
  O::allocate_training(buffer, c10::ScalarType::Float, int{}, int{});
  O::fill_main_params(buffer, fill);
};

/// Offload: weights and gradients move between host and device, the parameters' views with them.
template <class O>
concept MovesBuffers = requires(typename O::buffer_type& buffer, c10::DeviceType device) {
  O::move_weights(buffer, device);
  O::move_grads(buffer, device);
};

template <class O>
concept OptimizerPolicy = NamesPrecision<O> && AllocatesBuffers<O> && MovesBuffers<O>;

}  // namespace mgfl::optimizer
