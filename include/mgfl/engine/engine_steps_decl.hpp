/// The originals of the five steps in which Engine::initialize() builds an engine, in their order. A body is
/// a template over the engine's type, sees what Engine's own methods see, and may call the original of its
/// step. Python: verl/workers/engine/megatron/transformer_impl.py, MegatronEngine
#pragma once

#include "mgfl/base/error.hpp"
#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/engine.hpp"

namespace mgfl {

/// Stands for every Engine where signatures are compared; nobody ever makes one.
struct engine_archetype;

/// Reads the model's configuration: from config.json alone, or from a Hugging Face folder with weights.
template <>
struct implementation<targets::build_tf_config, vendors::original> {
  using self = engine_archetype;
  using archetype = self;

  template <class Self>
  static void call(Self& engine) {
    using Bridge = typename Self::bridge_type;
    constexpr auto head = Self::model_type::head_kind;
    const auto& source = engine.model_config_;
    check_user(
        source.local_path.empty() != source.config_path.empty(),
        "ModelConfig: set local_path, a model folder, or config_path, a config.json for random weights; "
        "exactly one of them.");
    engine.bridge_.emplace(source.local_path.empty() ? Bridge::from_config(source.config_path, head)
                                                     : Bridge::from_hf_pretrained(source.local_path, head));
  }
};

/// Allocates the model and gives its weights their values.
template <>
struct implementation<targets::build_megatron_module, vendors::original> {
  using self = engine_archetype;
  using archetype = self;

  template <class Self>
  static void call(Self& engine) {
    const auto provider = engine.bridge_->to_megatron_provider(engine.bridge_->has_weights());
    engine.model_.emplace(provider.config(), engine.model_parallel());
    engine.buffer_.emplace(
        Self::optimizer_policy::allocate_weights(engine.model_->parameters(), Self::precision::model_dtype));
    engine.model_->initialize(engine.model_config_.seed, provider.params_to_initialize());
    provider.load_weights(engine.buffer_->params);
  }
};

/// Makes the kernels ready, which were chosen when the library was built (MGFL_KERNELS). Where all machines
/// lack what these need, rank 0 says so; UserError where only some do, since their replicas would drift
/// apart.
template <>
struct implementation<targets::maybe_enable_fused_kernels, vendors::original> {
  using self = engine_archetype;
  using archetype = self;

  template <class Self>
  static void call(Self& engine) {
    engine.warn_where_all_ranks_do(Self::model_type::enable_fused_kernels());
  }
};

/// Allocates main weights, main gradients and the optimizer's state.
template <>
struct implementation<targets::build_optimizer, vendors::original> {
  using self = engine_archetype;
  using archetype = self;

  template <class Self>
  static void call(Self& engine) {
    using Policy = typename Self::optimizer_policy;
    using Precision = typename Self::precision;
    using Groups = typename Self::group_list_type;
    const auto& ranks = *engine.context_.data_parallel;
    Policy::allocate_training(*engine.buffer_, Precision::main_dtype, ranks.rank(), ranks.size());
    if constexpr (Precision::model_dtype != Precision::main_dtype) {
      // Main weights keep all bits of the file, not those that the model's dtype left over.
      if (engine.bridge_->has_weights())
        Policy::fill_main_params(*engine.buffer_,
                                 [&](const auto& params) { engine.bridge_->load_weights(params); });
    }
    engine.model_->allocate_grads(Precision::main_dtype);
    engine.optimizer_.emplace(*engine.buffer_, engine.optimizer_config_,
                              Groups{engine.context_.model_parallel}, engine.context_.data_parallel,
                              engine.tensor_parallel_group());
  }
};

/// Makes the schedule and writes its first learning rate into the optimizer's groups.
template <>
struct implementation<targets::build_lr_scheduler, vendors::original> {
  using self = engine_archetype;
  using archetype = self;

  template <class Self>
  static void call(Self& engine) {
    if constexpr (Self::scheduler_builds_from_config)
      engine.scheduler_.emplace(*engine.optimizer_, engine.scheduler_config_);
    else
      engine.scheduler_.emplace(*engine.optimizer_, engine.scheduler_config_.max_steps,
                                engine.scheduler_config_.min_lr);
  }
};

}  // namespace mgfl
