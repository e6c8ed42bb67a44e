/// The main function of a data-parallel program: alone, or as every rank that mpirun started.
#pragma once

#include <cstdlib>

#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/self.hpp"

namespace mgfl::parallel {

/// Runs `body` with this rank's Context<Mpi> where mpirun started the process, else with a Context<Self>, on
/// OMP_NUM_THREADS threads, or where that is not set on this rank's share of the machine's cores. Returns
/// what main should: the status of `body`, or that of the error that ended it, see run_guarded.
///
///   int main(int argc, char** argv) {
///     return mgfl::parallel::run([&](auto context) { return train(context, argv[1]); });
///   }
template <class Body>
int run(Body&& body) {
  const int threads = std::getenv("OMP_NUM_THREADS") ? num_threads() : 0;
  if (!launched_by_mpi())
    return run_guarded([&]() -> int {
      set_threads(threads);
      Self world, alone;
      return body(data_parallel_context(world, alone));
    });
  MpiSession session;
  return run_guarded(session, [&]() -> int {
    set_threads(threads, &session);
    Mpi world(session);
    auto alone = world.split(world.rank(), 0, "alone");
    return body(data_parallel_context(world, alone));
  });
}

}  // namespace mgfl::parallel
