#include "policies/data/numpy_random.hpp"

#include <bit>
#include <limits>

namespace mgfl::data {

double RandomState::random_sample() {
  const std::uint32_t high = uint32() >> 5, low = uint32() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

std::uint64_t RandomState::interval(std::uint64_t max) {
  if (max == 0) return 0;
  const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(max);
  const bool wide = max > std::numeric_limits<std::uint32_t>::max();
  while (true) {
    std::uint64_t value = uint32();
    if (wide) value = value << 32 | uint32();
    value &= mask;
    if (value <= max) return value;
  }
}

}  // namespace mgfl::data
