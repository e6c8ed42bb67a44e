/// Counter-based random numbers: what is drawn depends on (seed, stream, position) and on nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mgfl {

/// 128 random bits from a counter and a key: Philox 4x32-10 (Salmon et al., SC 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// A stream number for a name, e.g. a parameter's (FNV-1a).
std::uint64_t stream_of(std::string_view name);

/// Uniform deviate number i of a stream, in (0, 1].
double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t i);

/// Standard normal deviate number i of a stream.
double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t i);

}  // namespace mgfl
