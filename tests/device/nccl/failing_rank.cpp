// A job whose rank 1 fails in its second step, in the way that the first argument says; the second is the
// time-out.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/nccl.hpp"

using mgfl::parallel::Mpi;
using mgfl::parallel::Nccl;
using mgfl::parallel::NcclOptions;

namespace {

bool stops_inside = false;

}  // namespace

// The emulated NCCL reduces by it: where a rank stops that has begun its call.
extern "C" int MPI_Allgather(const void* own, int count, MPI_Datatype type, void* all, int count_of_each,
                             MPI_Datatype type_of_each, MPI_Comm comm) {
  if (stops_inside) ::raise(SIGSTOP);
  return PMPI_Allgather(own, count, type, all, count_of_each, type_of_each, comm);
}

namespace {

// Groups whose places on the board the next ones get, after unlike numbers of meetings on the ranks.
void use_places(const mgfl::parallel::MpiSession& session) {
  Mpi world(session), pair = world.split(session.rank() / 2, 0);
  mgfl::Tensor large = mgfl::zeros({1000}, at::kFloat);
  for (int i = 0; i < 5; ++i) pair.all_reduce(large, mgfl::ReduceOp::sum);
}

int work(Nccl group, const std::string& way) {
  const c10::Device device(group.device_type_for_comm(), static_cast<c10::DeviceIndex>(group.device_index()));
  mgfl::Tensor t = mgfl::zeros({3}, at::kFloat).to(device, at::kFloat);
  for (int step = 1; step <= 3; ++step) {
    if (step == 2 && group.world_rank() == 1) {
      if (way == "throw") throw mgfl::RunError("step 2 went wrong");
      if (way == "kill") ::raise(SIGKILL);
      if (way == "stop") ::raise(SIGSTOP);
      stops_inside = way == "stop_inside";
      if (way == "late") std::this_thread::sleep_for(std::chrono::seconds(60));
    }
    group.all_reduce(t, mgfl::ReduceOp::sum);
    (void)t.sum().item<float>();  // where the host would wait for ever
  }
  std::printf("all steps done\n");
  return 0;
}

}  // namespace

int main(int, char** argv) {
  const std::string way = argv[1];
  mgfl::parallel::MpiSession session(std::atof(argv[2]));
  return run_guarded(session, [&] {
    if (way == "stop_inside") use_places(session);
    // Of the others, rank 0 is to complain first.
    const int times = way == "stop_inside" && session.rank() > 0 ? 2 : 1;
    const NcclOptions options{.timeout_seconds = std::atof(argv[2]) * times};
    if (way.rfind("torchrun_", 0) != 0) return work(Nccl(session, options), way);
    const mgfl::parallel::TorchrunPlace place{.rank = session.rank(),
                                              .size = session.size(),
                                              .local_rank = session.local_rank(),
                                              .address = "127.0.0.1",
                                              .port = 20000 + static_cast<int>(::getppid() % 20000)};
    return work(Nccl(place, NcclOptions{.timeout_seconds = std::atof(argv[2])}), way.substr(9));
  });
}
