/// A caller of CosineAnnealingLR that knows no vendor.
#pragma once

#include <cstdint>
#include <vector>

namespace mgfl_test {

/// The rates of `steps` steps, which every parameter group got.
std::vector<double> rates_by_public_name(std::int64_t max_steps, double min_lr, int steps);

}  // namespace mgfl_test
