/// One rank of the running program: its groups, and the choice among the engines that were compiled in.
#pragma once

#include <chrono>
#include <cstdio>
#include <type_traits>

#include "examples/mgfl/options.hpp"
#include "mgfl/base/error.hpp"
#include "mgfl/base/log.hpp"
#include "mgfl/override/table.hpp"
#include "mgfl/parallel/share.hpp"
#include "policies/checkpoint/checkpoint.hpp"
#include "policies/engine/megatron_engine.hpp"

namespace mgfl::program {

using parallel::share_of;
using scheduler::constant_schedule;

/// This rank of the job: its groups, which outlive every engine.
template <parallel::Communicator C>
struct Rank {
  parallel::ParallelState<C> state;
  int threads = 1;
  std::chrono::steady_clock::time_point program_start;
  C& world = state.world();

  parallel::Context<C> context() { return state.context(); }
  /// The ranks among which sequences are dealt.
  C& data_parallel() { return *context().data_parallel; }
  bool is_first() const { return world.rank() == 0; }
};

inline parallel::ModelParallelSizes model_parallel_sizes(const ParallelOptions& options) {
  parallel::ModelParallelSizes sizes;
  sizes.tensor_model_parallel_size = static_cast<int>(options.tensor_model_parallel_size);
  return sizes;
}

/// Whether the engine has a value head, else a language model's.
template <class E>
inline constexpr bool has_value_head = E::model_type::head_kind == model::Head::value;

/// Calls `command` with the precision that the user chose, as a type.
template <class Command>
int with_precision(const PrecisionOptions& options, Command&& command) {
  switch (options.kind()) {
    case Precision::fp64:
      return command(std::type_identity<optimizer::Fp64>());
    case Precision::bf16:
      return command(std::type_identity<optimizer::Bf16WithFp32Main>());
    case Precision::fp16:
      return command(std::type_identity<optimizer::Fp16WithLossScaler>());
    case Precision::fp32:
      break;
  }
  return command(std::type_identity<optimizer::Fp32>());
}

/// Calls `command` with the type of the engine that the user chose, with or without shards of the optimizer's
/// state: the one choice made at start.
template <class C, bool sharded = false, class Command>
int with_engine(const PrecisionOptions& precision, bool value_head, Command&& command) {
  return with_precision(precision, [&](auto p) {
    using P = typename decltype(p)::type;
    using Layout = ShippedLayout<C>;
    using O = std::conditional_t<sharded, optimizer::Distributed<optimizer::AdamW, P>,
                                 optimizer::Local<optimizer::AdamW, P>>;
    using S = scheduler::OptimizerParamScheduler;
    return value_head ? command(std::type_identity<MegatronEngineWithValueHead<Layout, O, S>>())
                      : command(std::type_identity<MegatronEngineWithLMHead<Layout, O, S>>());
  });
}

/// Builds the engine; the first rank says which overrides its steps will use, and whether the value head is a
/// new one. UserError where it is and a run `goes_on` from the folder: optimizer state for the head is
/// missing.
template <class E, class C>
void initialize(E& engine, const Rank<C>& rank, bool goes_on = false) {
  engine.initialize();
  if (rank.is_first()) std::fprintf(stderr, "%s\n", override_summary().c_str());
  if constexpr (has_value_head<E>) {
    const auto& bridge = engine.bridge();
    if (!bridge.has_weights() || bridge.to_megatron_provider().params_to_initialize().empty()) return;
    const auto folder = bridge.hf_config().file.parent_path().string();
    check_user(!goes_on, folder,
               " is a language model's checkpoint, from which no critic's training can go on; ",
               "start one from its weights with --load-hf ", folder, ".");
    log_warning(rank.world.rank(),
                concat(folder, " has no value head; it gets a new one, random by --seed."));
  }
}

/// Model source of the flags. A checkpoint of ours is a Hugging Face folder as well; the newest complete one
/// counts.
inline ModelConfig model_config(const ModelSource& source, std::int64_t seed, int rank) {
  if (source.load.empty()) return {source.load_hf, source.init_from, static_cast<std::uint64_t>(seed)};
  const auto found = checkpoint::load(source.load);
  if (!found.note().empty()) log_warning(rank, found.note());
  return {found.folder().string(), "", static_cast<std::uint64_t>(seed)};
}

inline EngineConfig engine_config(const BatchOptions& batch, const ParallelOptions& parallel) {
  EngineConfig config;
  config.sequence_parallel = parallel.sequence_parallel;
  config.make_vocab_size_divisible_by = parallel.make_vocab_size_divisible_by;
  config.micro_batch_size = batch.micro_batch_size;
  config.max_tokens_per_micro_batch = batch.max_tokens_per_micro_batch.value_or(0);
  return config;
}

}  // namespace mgfl::program
