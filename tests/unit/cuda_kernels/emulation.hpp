/// Runs the operations of the cuda set on the host, thread by thread, so that a machine without a GPU checks
/// their arithmetic, the order of their sums and who writes what. Every tensor counts as one on the emulated
/// device.
#pragma once

#include "mgfl/override/target.hpp"
#include "vendors/cuda/manifest.hpp"

namespace cuda_tests {

/// Rows, and the threads of a team, go forward in even runs and backward in odd ones: a result that depends
/// on it would be a race on a GPU.
void prepare_run(int run);

/// Operations launched so far.
int launches();

/// The kernel as callers get it.
template <class Target>
inline constexpr auto kernel = mgfl::implementation<Target, mgfl::vendors::cuda>::call;

}  // namespace cuda_tests
