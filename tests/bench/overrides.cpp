// What a call through a target costs beside the direct call of the same body: nothing, as
// tests/override/zero_cost proves on the machine code. Rows come in pairs: through the target, then by hand.
#include <benchmark/benchmark.h>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"

namespace {

using mgfl::Tensor;
namespace targets = mgfl::targets;
template <class T>
using active = mgfl::implementation<T, mgfl::active_vendor<T>>;

/// Measures `call` on two matrices of a row of eight: as little work as a kernel can do.
template <class Call>
void measure(benchmark::State& state, Call call) {
  const Tensor wide = mgfl::zeros({1, 16}, at::kFloat);
  Tensor narrow = mgfl::zeros({1, 8}, at::kFloat);
  for (auto _ : state) {
    call(wide, narrow);
    benchmark::ClobberMemory();
  }
}

void function_through_the_target(benchmark::State& state) { measure(state, mgfl::kernels::swiglu); }
void function_by_hand(benchmark::State& state) {
  measure(state, [](const Tensor& wide, Tensor& narrow) { active<targets::swiglu>::call(wide, narrow); });
}

/// Measures one step of a schedule and the reading of its rate.
template <class Scheduler>
void measure(benchmark::State& state) {
  mgfl::optimizer::Optimizer optimizer{{mgfl::optimizer::ParamGroup{}}};
  Scheduler scheduler(optimizer, 1000);
  for (auto _ : state) {
    scheduler.step();
    benchmark::DoNotOptimize(scheduler.get_lr());
  }
}

void class_through_the_target(benchmark::State& state) { measure<mgfl::scheduler::CosineAnnealingLR>(state); }
void class_by_hand(benchmark::State& state) { measure<active<targets::CosineAnnealingLR>::type>(state); }

BENCHMARK(function_through_the_target);
BENCHMARK(function_by_hand);
BENCHMARK(class_through_the_target);
BENCHMARK(class_by_hand);

}  // namespace

int main(int argc, char** argv) {
  mgfl::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
