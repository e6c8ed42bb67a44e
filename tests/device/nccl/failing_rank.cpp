// A job whose rank 1 fails in its second step, in the way that the first argument says; the second is the
// time-out.
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
#include "policies/parallel/nccl.hpp"

using mgfl::parallel::Nccl;
using mgfl::parallel::NcclOptions;

namespace {

int work(Nccl group, const std::string& way) {
  const c10::Device device(group.device_type_for_comm(), static_cast<c10::DeviceIndex>(group.device_index()));
  mgfl::Tensor t = mgfl::zeros({3}, at::kFloat).to(device, at::kFloat);
  for (int step = 1; step <= 3; ++step) {
    if (step == 2 && group.world_rank() == 1) {
      if (way == "throw") throw mgfl::RunError("step 2 went wrong");
      if (way == "kill") ::raise(SIGKILL);
      if (way == "stop") ::raise(SIGSTOP);
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
    if (way.rfind("torchrun_", 0) != 0) return work(Nccl(session), way);
    const mgfl::parallel::TorchrunPlace place{.rank = session.rank(),
                                              .size = session.size(),
                                              .local_rank = session.local_rank(),
                                              .address = "127.0.0.1",
                                              .port = 20000 + static_cast<int>(::getppid() % 20000)};
    return work(Nccl(place, NcclOptions{.timeout_seconds = std::atof(argv[2])}), way.substr(9));
  });
}
