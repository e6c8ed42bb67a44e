/// Brings tensors into contiguous host memory before they are written to a file.
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/checkpoint/preload_tensors_decl.hpp"

namespace mgfl::checkpoint {

inline constexpr auto preload_tensors = dispatch<targets::preload_tensors>;

}  // namespace mgfl::checkpoint
