#include "mgfl/tensor/checksum.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "mgfl/tensor/lean.hpp"

namespace mgfl {

std::uint64_t checksum(const Tensor& values) {
  const auto host = values.detach().to(at::kCPU).contiguous();
  const auto* bytes = static_cast<const unsigned char*>(host.const_data_ptr());
  const std::size_t size = host.nbytes();
  constexpr std::uint64_t prime = 0x9E3779B97F4A7C15;
  // Four independent lanes, so that one multiplication need not wait for the last.
  std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};
  std::size_t at = 0;
  for (std::size_t lane = 0; at < size; at += 8, lane = (lane + 1) % 4) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
    lanes[lane] = std::rotl((lanes[lane] ^ word) * prime, 29);
  }
  std::uint64_t sum = size;
  for (const auto lane : lanes) sum = std::rotl((sum ^ lane) * prime, 31);
  return sum;
}

}  // namespace mgfl
