/// A fast checksum of a tensor's bytes: tells whether ranks hold the same numbers.
#pragma once

#include <cstdint>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

/// Of the elements in row-major order; the same bits give the same number on every machine of one byte order.
std::uint64_t checksum(const Tensor& values);

}  // namespace mgfl
