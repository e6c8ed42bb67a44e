/// Random initial weights from counter-based streams: the same numbers on every layout.
#pragma once

#include <cstdint>
#include <span>

#include "mgfl/parallel/param.hpp"

namespace mgfl::model {

/// Fills every parameter as its description says: normal(0, init_std) from the stream (seed, parameter name),
/// element i from counter i; or the constant init_value.
void initialize_parameters(std::span<const ParamRef> params, std::uint64_t seed);

}  // namespace mgfl::model
