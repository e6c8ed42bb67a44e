#include "tests/mpi/public_name.hpp"

#include "mgfl/base/error.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"

namespace mgfl_test {

std::vector<double> rates_by_public_name(std::int64_t max_steps, double min_lr, int steps) {
  mgfl::optimizer::Optimizer optimizer;
  optimizer.param_groups.resize(3);
  mgfl::scheduler::CosineAnnealingLR scheduler(optimizer, max_steps, min_lr);
  std::vector<double> rates;
  for (int i = 0; i < steps; ++i) {
    scheduler.step();
    for (const auto& group : optimizer.param_groups)
      mgfl::check_run(group.lr == scheduler.get_lr(), "a parameter group has another rate than the first");
    rates.push_back(scheduler.get_lr());
  }
  return rates;
}

}  // namespace mgfl_test
