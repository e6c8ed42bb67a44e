/// What a worker may ask of any engine: verl's BaseEngine as a concept, built of named parts.
/// Mirrors verl.workers.engine.base.BaseEngine.
#pragma once

#include <concepts>
#include <ranges>
#include <string>

#include "mgfl/engine/engine.hpp"

namespace mgfl {

template <class E>
concept HasInitialize = requires(E& engine) {
  engine.initialize();
};

/// Guards that keep the engine in a mode, and what lies on the host outside them.
template <class E>
concept HasModes = requires(E& engine, const E& constant, const ModeOptions& options) {
  engine.train_mode(options);
  engine.eval_mode(options);
  { constant.is_param_offload_enabled() } -> std::same_as<bool>;
  { constant.is_optimizer_offload_enabled() } -> std::same_as<bool>;
  engine.to(c10::DeviceType::CPU, true, true, true);
};

template <class E>
concept HasSteps = requires(E& engine) {
  engine.optimizer_zero_grad();
  { engine.optimizer_step() } -> std::same_as<StepResult>;
  { engine.lr_scheduler_step() } -> std::same_as<double>;
};

/// A loss for this engine: any callable LossTerms(const loss_input_type&).
template <class E>
using loss_of_engine = LossTerms (*)(const typename E::loss_input_type&);

template <class E>
concept RunsBatches = requires(E& engine, const Batch& batch, const PaddedBatch& padded,
                               loss_of_engine<E> loss) {
  { engine.forward_backward_batch(batch, loss, bool{}) } -> std::same_as<typename E::result_type>;
  { engine.forward_backward_batch(padded, loss, bool{}) } -> std::same_as<typename E::result_type>;
  { engine.train_batch(batch, loss) } -> std::same_as<typename E::train_result_type>;
  { engine.infer_batch(batch) } -> std::same_as<typename E::result_type>;
  { engine.infer_batch(batch, loss) } -> std::same_as<typename E::result_type>;
  engine.train_mini_batch(batch, loss, MiniBatchConfig{});
};

/// Weights for an inference engine: a range of (Hugging Face name, tensor).
template <class E>
concept YieldsWeights = requires(E& engine) {
  { engine.get_per_tensor_param(bool{}).params } -> std::ranges::input_range;
  engine.get_per_tensor_param().peft_config;
};

template <class E>
concept HasCheckpoints = requires(E& engine, const std::string& path, const TrainingPosition& position) {
  engine.save_checkpoint(path, position, 1);
  { engine.load_checkpoint(path) } -> std::same_as<TrainingPosition>;
};

template <class E>
concept KnowsItsPlace = requires(E& engine, const E& constant) {
  { constant.get_data_parallel_rank() } -> std::same_as<int>;
  { constant.get_data_parallel_size() } -> std::same_as<int>;
  { engine.get_data_parallel_group() } -> std::same_as<typename E::communicator_type&>;
  { constant.is_mp_src_rank_with_outputs() } -> std::same_as<bool>;
};

template <class E>
concept BaseEngine = HasInitialize<E> && HasModes<E> && HasSteps<E> && RunsBatches<E> && YieldsWeights<E> &&
    HasCheckpoints<E> && KnowsItsPlace<E>;

}  // namespace mgfl
