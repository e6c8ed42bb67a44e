// A job whose rank 1 fails in the way that the first argument names; failing_ranks.py starts it and judges
// its end.
#include "mgfl/tensor/lean.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/mpi.hpp"

using mgfl::ReduceOp;
using mgfl::Tensor;
using mgfl::parallel::Mpi;

namespace {

void fail() { throw std::runtime_error("thrown where nothing may be"); }

void fail_where_nothing_may() noexcept { fail(); }

int steps(const mgfl::parallel::MpiSession& session, const std::string& way) {
  Mpi world(session);
  const bool culprit = world.rank() == 1;
  if (way == "user_error_everywhere")
    throw mgfl::UserError("the file /no/such/model is missing; give an existing folder.");
  if (way == "user_error_first" && culprit) throw mgfl::UserError("rank 1 cannot open its data.");
  if (way == "other_errors") throw mgfl::UserError(culprit ? "this is wrong here." : "that is wrong there.");
  Tensor tensor = mgfl::zeros({3}, at::kFloat), large = mgfl::zeros({1 << 24}, at::kFloat);
  for (int step = 1; step <= 3; ++step) {
    world.all_reduce(tensor, ReduceOp::sum);
    if (step == 2 && culprit) {
      if (way == "throw") throw std::runtime_error("step 2 went wrong");
      if (way == "terminate") fail_where_nothing_may();
      if (way == "kill") std::raise(SIGKILL);
      if (way == "crash") std::raise(SIGSEGV);
      if (way == "exit") std::exit(0);
      if (way == "quick_exit") ::_exit(0);
      if (way == "return") return 0;
      if (way == "status") return 3;
      if (way == "stop") std::raise(SIGSTOP);
      if (way == "stop_inside")
        std::thread([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          ::kill(::getpid(), SIGSTOP);
        }).detach();
      if (way == "other_size") tensor = mgfl::zeros({4}, at::kFloat);
    }
    if (way == "stop_inside" && step == 2)
      for (int i = 0; i < 10000; ++i) world.all_reduce(large, ReduceOp::sum);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  const double timeout = argc > 2 ? std::atof(argv[2]) : 600;
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  mgfl::parallel::MpiSession session(timeout);
  if (way == "unguarded")
    return session.rank() == 1 ? throw std::runtime_error("nobody catches this") : steps(session, way);
  const int status = run_guarded(session, [&] { return steps(session, way); });
  if (status == 0 && session.rank() == 0) std::puts("all steps done");
  return status;
}
