/// The commands of the mgfl program. Each runs on every rank and returns the process's exit status.
#pragma once

#include "examples/mgfl/options.hpp"
#include "examples/mgfl/rank.hpp"

namespace mgfl::program {

template <class C>
int run_score(const ScoreOptions& options, Rank<C>& rank);
template <class C>
int run_generate(const GenerateOptions& options, Rank<C>& rank);
template <class C>
int run_train(const TrainOptions& options, Rank<C>& rank);
template <class C>
int run_bench(const BenchOptions& options, Rank<C>& rank);
int run_overrides(const OverridesOptions& options);

}  // namespace mgfl::program
