/// Saves and restores a training run: weights under Hugging Face names, optimizer state, schedule, scaler and
/// data position. A checkpoint's folder is a Hugging Face model folder as well.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/engine/engine.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/checkpoint/checkpoint.hpp"
#include "policies/optimizer/adamw.hpp"
#include "policies/optimizer/grad_scaler.hpp"
#include "policies/optimizer/param_buffer.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"

namespace mgfl::checkpoint {

/// What a checkpoint keeps beside tensors.
struct TrainingState {
  TrainingPosition position;
  optimizer::OptimizerKind optimizer = optimizer::OptimizerKind::adam;
  std::int64_t optimizer_updates = 0;
  optimizer::GradScalerState scaler;
  scheduler::OptimizerParamSchedulerState scheduler;
};

/// Main weights and the optimizer's states, under their names, as logical parameters.
struct WholeTraining {
  optimizer::WholeParams main_params;
  std::vector<std::pair<std::string, optimizer::WholeParams>> states;
};

/// One process `writes` the whole state; where others hold parts or shards of it, these call this too, and
/// `gather` (of the optimizer) makes the value of one logical parameter after the other there. Weights have
/// the dtypes that an export would give them, so that a run that goes on exports as the first one would have;
/// main weights are kept beside them wherever that loses bits.
void save_training_tensors(const std::filesystem::path& dir, const TrainingState& state,
                           const bridge::AutoBridge& bridge, WholeTraining whole,
                           function_ref<void(optimizer::WholeParams&, std::size_t)> gather, bool writes,
                           int keep_last);

/// UserError where the saved state is another optimizer's.
void check_same_optimizer(const Checkpoint& checkpoint, optimizer::OptimizerKind saved,
                          optimizer::OptimizerKind here);

/// UserError unless the checkpoint's config.json describes this model.
void check_same_model(const Checkpoint& checkpoint, const model::TransformerConfig& config);

/// Everything but the tensors. UserError where the checkpoint holds no training state.
TrainingState read_training_state(const Checkpoint& checkpoint);

/// UserError naming folder and tensor where load_training_tensors would not find what it needs, e.g. in a
/// checkpoint of another precision.
void check_training_tensors(const Checkpoint& checkpoint, const model::TransformerConfig& config,
                            const optimizer::ParamBuffer& buffer, const optimizer::AdamW& adamw);

/// Restores this rank's part of main weights, of the optimizer's states and of rounded weights. Throws as
/// check_training_tensors.
void load_training_tensors(const Checkpoint& checkpoint, const model::TransformerConfig& config,
                           optimizer::ParamBuffer& buffer, optimizer::AdamW& adamw);

/// How Engine::save_checkpoint and load_checkpoint do it, for engines that train with AdamW (or SGD in
/// its place) and Megatron's schedule.
struct TrainingCheckpoint {
  /// Collective; the first rank of the job writes. Every rank returns after the checkpoint is complete.
  template <class Engine>
  static void save(Engine& engine, const std::filesystem::path& dir, const TrainingPosition& position,
                   std::int64_t keep_last) {
    check_engine<Engine>();
    auto& parts = engine.optimizer();
    const auto& adamw = parts.inner();
    WholeTraining whole{parts.whole_main_params(), {}};
    for (const auto& [name, state] : adamw.states())
      whole.states.emplace_back(name, parts.whole_params(state, whole.main_params.scratch()));
    save_training_tensors(
        dir, {position, adamw.kind(), adamw.updates, parts.scaler_state(), engine.lr_scheduler().state()},
        engine.bridge(), std::move(whole),
        [&](optimizer::WholeParams& whole, std::size_t i) { parts.gather(whole, i); },
        engine.context().world->rank() == 0, static_cast<int>(keep_last));
    engine.context().world->barrier();
  }

  /// Brings an initialized engine to where the run of the newest checkpoint in `dir` stopped.
  template <class Engine>
  static TrainingPosition load(Engine& engine, const std::filesystem::path& dir) {
    const auto checkpoint = checkpoint::load(dir);
    if (!checkpoint.note().empty()) log_warning(engine.context().world->rank(), checkpoint.note());
    return load(engine, checkpoint);
  }

  /// The same from an open checkpoint. A refusal leaves the engine as it is.
  template <class Engine>
  static TrainingPosition load(Engine& engine, const Checkpoint& checkpoint) {
    check_engine<Engine>();
    auto& inner = engine.optimizer().inner();
    // What can be refused is, before anything changes.
    check_same_model(checkpoint, engine.config());
    const auto state = read_training_state(checkpoint);
    check_same_optimizer(checkpoint, state.optimizer, inner.kind());
    check_training_tensors(checkpoint, engine.config(), engine.param_buffer(), inner);
    optimizer::check_state(state.scaler);
    engine.lr_scheduler().load_state(state.scheduler);
    engine.optimizer().load_scaler_state(state.scaler);
    load_training_tensors(checkpoint, engine.config(), engine.param_buffer(), inner);
    inner.updates = state.optimizer_updates;
    return state.position;
  }

 private:
  template <class Engine>
  static constexpr void check_engine() {
    static_assert(
        requires(Engine & engine) {
          { engine.optimizer().inner() } -> std::same_as<optimizer::AdamW&>;
          { engine.lr_scheduler().state() } -> std::convertible_to<scheduler::OptimizerParamSchedulerState>;
        },
        "mgfl: checkpoints hold the state of AdamW and of OptimizerParamScheduler; save the state of "
        "another optimizer or schedule yourself.");
  }
};

}  // namespace mgfl::checkpoint
