/// The main function of a parallel program: alone, or as every rank that mpirun started.
#pragma once

#include <cstdlib>
#include <utility>

#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/self.hpp"

namespace mgfl::parallel {

/// Runs `body` with this rank's Context<Mpi> where mpirun started the process, else with a Context<Self>, on
/// OMP_NUM_THREADS threads, or where that is not set on this rank's share of the machine's cores. Returns
/// what main should: the status of `body`, or that of the error that ended it, see run_guarded. Ranks are
/// laid out by `sizes`, see ParallelState; UserError where they need more ranks than were started.
///
///   int main(int argc, char** argv) {
///     return mgfl::parallel::run([&](auto context) { return train(context, argv[1]); });
///   }
template <class Body>
int run(const ModelParallelSizes& sizes, Body&& body) {
  const int threads = std::getenv("OMP_NUM_THREADS") ? num_threads() : 0;
  if (!launched_by_mpi())
    return run_guarded([&]() -> int {
      set_threads(threads);
      check_fits_alone(sizes);
      ParallelState<Self> state({}, sizes);
      return body(state.context());
    });
  MpiSession session;
  return run_guarded(session, [&]() -> int {
    set_threads(threads, &session);
    ParallelState<Mpi> state(Mpi(session), sizes);
    return body(state.context());
  });
}

/// The same with data parallelism over all ranks.
template <class Body>
int run(Body&& body) {
  return run(ModelParallelSizes{}, std::forward<Body>(body));
}

}  // namespace mgfl::parallel
