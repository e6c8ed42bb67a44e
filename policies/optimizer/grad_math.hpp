/// Passes over flat gradient buffers, the same bits at any number of threads.
#pragma once

#include <cstdint>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl::optimizer {

/// grads *= factor; true if every element was finite before. grads: contiguous fp32 or fp64.
bool scale_and_check_finite(Tensor& grads, double factor);

/// Elements that are exactly zero. grads: contiguous fp32 or fp64.
std::int64_t count_zeros(const Tensor& grads);

}  // namespace mgfl::optimizer
