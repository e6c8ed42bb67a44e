#include "policies/training/random_seed.hpp"

#include <ATen/Context.h>

#include "mgfl/base/error.hpp"

namespace mgfl::training {

StreamSeeds stream_seeds(std::uint64_t seed, const SeedRanks& ranks, SeedBase base) {
  for (const int rank : {ranks.tp, ranks.pp, ranks.dp, ranks.ep, ranks.etp})
    check_user(rank >= 0, "random seeds: a rank of ", rank, " (tp ", ranks.tp, ", pp ", ranks.pp, ", dp ",
               ranks.dp, ", ep ", ranks.ep, ", etp ", ranks.etp, "); ranks count from 0.");
  const auto times = [](std::uint64_t step, int rank) { return step * static_cast<std::uint64_t>(rank); };
  if (base != SeedBase::engine) seed += times(100, ranks.pp);
  if (base == SeedBase::training_random_init) seed += times(10, ranks.dp);
  return {seed, seed + 2718 + times(1, ranks.tp), seed + 1024 + times(100, ranks.ep) + times(1, ranks.etp)};
}

StreamSeeds set_random_seed(std::uint64_t seed, const SeedRanks& ranks, SeedBase base) {
  const auto seeds = stream_seeds(seed, ranks, base);
  at::manual_seed(seeds.default_rng);
  return seeds;
}

}  // namespace mgfl::training
