// A job whose rank 0 sends weights, and which fails in the way that the first argument names; judge_job.py
// judges its end.
#include "mgfl/tensor/lean.hpp"

#include <cstdio>
#include <cstdlib>
#include <ranges>
#include <stdexcept>
#include <string>

#include "mgfl/base/error.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/weight_sync/receiver.hpp"
#include "policies/weight_sync/sender.hpp"
#include "tests/mpi/weight_sync.hpp"

using namespace mgfl;

namespace {

int sync(const parallel::MpiSession& session, const std::string& way) {
  parallel::Mpi world(session);
  if (world.rank() == 0) {
    const auto weights = mgfl_test::weights_of(std::string(MGFL_TEST_DATA) + "/qwen3");
    weight_sync::send_weights(weights | std::views::transform([&](const auto& pair) {
                                if (way == "range" && &pair == &weights[7])
                                  throw std::runtime_error("the optimizer is half way");
                                if (way == "exit" && &pair == &weights[7]) std::exit(0);
                                return pair;
                              }),
                              world, {2000});
  } else {
    int calls = 0;
    weight_sync::receive_weights(world, 0, [&](const std::string& name, const Tensor&) {
      if (world.rank() == 1 && ++calls == 5) check_user(way != "sink", "the engine has no ", name, ".");
    });
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  parallel::MpiSession session(argc > 2 ? std::atof(argv[2]) : 600);
  const int status = run_guarded(session, [&] { return sync(session, way); });
  if (status == 0 && session.rank() == 0) std::puts("all weights sent");
  return status;
}
