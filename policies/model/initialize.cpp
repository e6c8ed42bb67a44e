#include "policies/model/initialize.hpp"

#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "mgfl/tensor/factory.hpp"

namespace mgfl::model {

namespace {

/// Philox 4x32-10 (Salmon et al., SC 2011): 128 random bits from a counter and a key.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto product0 = std::uint64_t{0xD2511F53} * counter[0];
    const auto product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// FNV-1a, to give each parameter a stream of its own.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// Standard normal deviate number i of a stream (Box-Muller; two deviates share one block of 128 bits).
double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
  const auto block = i / 2;
  const auto bits = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                            static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                           {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const auto uniform = [](std::uint32_t high, std::uint32_t low) {  // in (0, 1]
    return (static_cast<double>((std::uint64_t{high} << 21) ^ (low >> 11)) + 1.0) * 0x1.0p-53;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform(bits[0], bits[1])));
  const double angle = 2.0 * std::numbers::pi * uniform(bits[2], bits[3]);
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace

void initialize_parameters(std::span<const ParamRef> params, std::uint64_t seed) {
  for (const auto& param : params) {
    const auto& desc = *param.desc;
    if (desc.init_std == 0) {
      param.value->fill_(desc.init_value);
      continue;
    }
    auto values = empty(desc.shape, at::kDouble);
    auto* out = values.data_ptr<double>();
    const auto stream = stream_of(desc.name);
    const auto numel = values.numel();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < numel; ++i)
      out[i] = desc.init_std * normal(seed, stream, static_cast<std::uint64_t>(i));
    param.value->copy_(values);
  }
}

}  // namespace mgfl::model
