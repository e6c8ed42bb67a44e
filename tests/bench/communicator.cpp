// Speed of the large collectives of Mpi against MPI's own on the same tensors: mpirun -n 2 bench_communicator
// [MB [repeats [bytes of a stage, 0: messages]]]. communicator.py runs it beside torch.distributed's Gloo.
#include "mgfl/tensor/lean.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/mpi.hpp"

namespace {

using mgfl::ReduceOp;
using mgfl::Tensor;
using mgfl::parallel::Mpi;

int bench(const mgfl::parallel::MpiSession& session, double megabytes, int repeats,
          std::int64_t stage_bytes) {
  mgfl::parallel::MpiOptions options;
  if (stage_bytes >= 0) options.stage_bytes = stage_bytes;
  Mpi world(session, options);
  const int size = world.size();
  // Elements of one rank's part, so that every rank's share is equal.
  const std::int64_t part_elements = static_cast<std::int64_t>(megabytes * 1e6 / 4 / size);
  const int part_count = static_cast<int>(part_elements), whole_count = part_count * size;
  Tensor whole = mgfl::empty({whole_count}, at::kFloat).fill_(0), received = whole.clone(),
         part = mgfl::empty({part_count}, at::kFloat).fill_(0);
  float *w = whole.mutable_data_ptr<float>(), *p = part.mutable_data_ptr<float>();

  const auto report = [&](const char* name, mgfl::function_ref<void()> run) {
    double best = 1e9;
    for (int i = 0; i <= repeats; ++i) {
      world.barrier();
      const auto begin = std::chrono::steady_clock::now();
      run();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      const double slowest = world.all_reduce_value(taken.count(), ReduceOp::max);
      if (i > 0) best = std::min(best, slowest);  // the first one touches fresh memory
    }
    if (world.rank() == 0)
      std::printf("%-22s %d ranks %g MB fp32 %9.3f ms\n", name, size, megabytes, best * 1e3);
  };
  report("Mpi::all_reduce", [&] { world.all_reduce(whole, ReduceOp::sum); });
  report("MPI_Allreduce",
         [&] { MPI_Allreduce(MPI_IN_PLACE, w, whole_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  report("Mpi::reduce_scatter", [&] { world.reduce_scatter(whole, part, ReduceOp::sum); });
  report("MPI_Reduce_scatter",
         [&] { MPI_Reduce_scatter_block(w, p, part_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  report("Mpi::all_gather", [&] { world.all_gather(part, whole); });
  report("MPI_Allgather",
         [&] { MPI_Allgather(p, part_count, MPI_FLOAT, w, part_count, MPI_FLOAT, MPI_COMM_WORLD); });
  const int next = (world.rank() + 1) % size, previous = (world.rank() + size - 1) % size;
  const mgfl::parallel::Transfer around[] = {mgfl::parallel::Transfer::send(whole, next),
                                             mgfl::parallel::Transfer::receive(received, previous)};
  report("Mpi::exchange", [&] { world.exchange(around); });
  report("MPI_Sendrecv", [&] {
    MPI_Sendrecv(w, whole_count, MPI_FLOAT, next, 0, received.mutable_data_ptr<float>(), whole_count,
                 MPI_FLOAT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  });
  report("Mpi::all_to_all", [&] { world.all_to_all(whole, received); });
  report("MPI_Alltoall", [&] {
    MPI_Alltoall(w, part_count, MPI_FLOAT, received.mutable_data_ptr<float>(), part_count, MPI_FLOAT,
                 MPI_COMM_WORLD);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  mgfl::parallel::MpiSession session(60);
  return run_guarded(session, [&] {
    return bench(session, argc > 1 ? std::atof(argv[1]) : 64.0, argc > 2 ? std::atoi(argv[2]) : 10,
                 argc > 3 ? std::atoll(argv[3]) : -1);
  });
}
