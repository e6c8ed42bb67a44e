/// A fast checksum of a tensor's bytes: tells whether ranks hold the same numbers.
#pragma once

#include <cstdint>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

/// XXH64 of the elements in row-major order: the same bits give the same number.
std::uint64_t checksum(const Tensor& values);

}  // namespace mgfl
