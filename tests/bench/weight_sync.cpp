// Speed of a weight sync from rank 0 to the others against MPI's own broadcast of as many bytes in one piece,
// and against the hash alone, on tensors as a 0.25 B model has them: mpirun -n 2 bench_weight_sync [bucket
// MiB].
#include "mgfl/tensor/lean.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/base/xxh64.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/weight_sync/receiver.hpp"
#include "policies/weight_sync/sender.hpp"

namespace {

using mgfl::Tensor;
using mgfl::parallel::Mpi;

/// The shortest of five runs, in seconds, from a barrier to the end of the slowest rank.
double seconds_of(Mpi& world, mgfl::function_ref<void()> run) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, world.all_reduce_value(taken.count(), mgfl::ReduceOp::max));
  }
  return best;
}

int bench(const mgfl::parallel::MpiSession& session, std::int64_t bucket_mib) {
  Mpi world(session);
  std::vector<std::pair<std::string, Tensor>> weights;
  double bytes = 0;
  const auto add = [&](const std::string& name, at::IntArrayRef shape) {
    weights.emplace_back(name, mgfl::zeros(shape, at::kBFloat16).fill_(0.25 + world.rank()));
    bytes += static_cast<double>(weights.back().second.nbytes());
  };
  constexpr std::int64_t hidden = 1024, ffn = 3072, kv = 512;
  add("embed", {65536, hidden});
  for (int layer = 0; layer < 14; ++layer) {
    const std::string name = std::to_string(layer);
    for (const auto* norm : {".n1", ".n2"}) add(name + norm, {hidden});
    for (const auto* square : {".q", ".o"}) add(name + square, {hidden, hidden});
    for (const auto* narrow : {".k", ".v"}) add(name + narrow, {kv, hidden});
    for (const auto* wide : {".gate", ".up", ".down"}) add(name + wide, {ffn, hidden});
  }
  // Filled, since pages of zeros that nobody wrote are one page in the cache.
  Tensor flat = mgfl::empty({static_cast<std::int64_t>(bytes)}, at::kByte).fill_(world.rank());

  const double native = seconds_of(world, [&] {
    MPI_Bcast(flat.mutable_data_ptr(), static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD);
  });
  const double broadcast = seconds_of(world, [&] { world.broadcast(flat, 0); });
  const double tensors = seconds_of(world, [&] {
    for (auto& [name, tensor] : weights) world.broadcast(tensor, 0);
  });
  const double sync = seconds_of(world, [&] {
    if (world.rank() == 0)
      mgfl::weight_sync::send_weights(weights, world, {bucket_mib << 20});
    else
      mgfl::weight_sync::receive_weights(world, 0, [](const std::string&, const Tensor&) {});
  });
  std::uint64_t digest = 0;
  const double hash = seconds_of(world, [&] {
    mgfl::Xxh64 hasher;
    hasher.update(flat.const_data_ptr(), flat.nbytes());
    digest ^= hasher.digest();
  });
  if (world.rank() == 0)
    std::printf(
        "%zu tensors, %.0f MB, %d ranks, hash %llx\nMPI_Bcast %.2f GB/s, Mpi::broadcast %.2f GB/s, hash "
        "%.2f GB/s, tensor by tensor %.2f GB/s, weight sync %.2f GB/s = %.2f x MPI_Bcast\n",
        weights.size(), bytes / 1e6, world.size(), static_cast<unsigned long long>(digest),
        bytes / native / 1e9, bytes / broadcast / 1e9, bytes / hash / 1e9, bytes / tensors / 1e9,
        bytes / sync / 1e9, native / sync);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  mgfl::parallel::MpiSession session(60);
  return run_guarded(session, [&] { return bench(session, argc > 1 ? std::atoll(argv[1]) : 256); });
}
