#include "mgfl/base/random.hpp"

#include <cmath>
#include <numbers>

#include "mgfl/base/hash.hpp"

namespace mgfl {

namespace {

std::array<std::uint32_t, 4> block(std::uint64_t seed, std::uint64_t stream, std::uint64_t number) {
  return philox({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

double unit(std::uint32_t high, std::uint32_t low) {  // in (0, 1]
  return (static_cast<double>((std::uint64_t{high} << 21) ^ (low >> 11)) + 1.0) * 0x1.0p-53;
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto product0 = std::uint64_t{0xD2511F53} * counter[0];
    const auto product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

std::uint64_t stream_of(std::string_view name) { return fnv1a(name); }

double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
  const auto bits = block(seed, stream, i / 2);
  return i % 2 == 0 ? unit(bits[0], bits[1]) : unit(bits[2], bits[3]);
}

double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
  // Box-Muller: deviates 2k and 2k + 1 share one block of 128 bits.
  const auto bits = block(seed, stream, i / 2);
  const double radius = std::sqrt(-2.0 * std::log(unit(bits[0], bits[1])));
  const double angle = 2.0 * std::numbers::pi * unit(bits[2], bits[3]);
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace mgfl
