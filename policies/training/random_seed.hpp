/// The seeds of one rank's random streams, as verl's engine and Megatron's trainer derive them from one seed.
/// Python: verl/workers/engine/megatron/utils.py, set_random_seed; megatron/training/initialize.py,
/// _set_random_seed; megatron/core/tensor_parallel/random.py, model_parallel_cuda_manual_seed
#pragma once

#include <cstdint>

namespace mgfl::training {

/// A rank's places that its seeds depend on.
struct SeedRanks {
  int tp = 0, pp = 0, dp = 0;
  int ep = 0, etp = 0;
};

/// What the streams' seeds count from.
enum class SeedBase {
  engine,                // the seed, on every rank: all pipeline stages share their streams (verl's engine)
  training,              // + 100 pp (Megatron's trainer)
  training_random_init,  // + 100 pp + 10 dp: also with --data-parallel-random-init
};

/// Names are those of Megatron's tracker, CudaRNGStatesTracker.
struct StreamSeeds {
  std::uint64_t default_rng;          // "default" and "data-parallel-rng": the base
  std::uint64_t model_parallel_rng;   // "model-parallel-rng": base + 2718 + tp
  std::uint64_t expert_parallel_rng;  // "expert-parallel-rng": base + 1024 + 100 ep + etp
};

/// The seeds of a rank's streams. UserError for a negative rank. Sums wrap at 2^64.
StreamSeeds stream_seeds(std::uint64_t seed, const SeedRanks& ranks, SeedBase base = SeedBase::engine);

/// Computes the same, and seeds LibTorch's generators of this process with `default_rng`, for loss closures
/// and programs that draw numbers. mgfl's own streams (mgfl/base/random.hpp: initial weights) are
/// counters keyed by seed, stream and position; they are equal in every layout, and none of this touches
/// them.
StreamSeeds set_random_seed(std::uint64_t seed, const SeedRanks& ranks, SeedBase base = SeedBase::engine);

}  // namespace mgfl::training
