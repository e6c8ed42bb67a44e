/// A fast hash of bytes that is the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mgfl {

/// XXH64, a well-known fast 64-bit hash (not a cryptographic one), fed piece by piece.
class Xxh64 {
 public:
  explicit Xxh64(std::uint64_t seed = 0);
  void update(const void* bytes, std::size_t size);
  std::uint64_t digest() const;

 private:
  std::uint64_t lanes_[4];
  std::uint64_t seed_;
  std::uint64_t total_ = 0;
  unsigned char buffer_[32];
  std::size_t buffered_ = 0;
};

}  // namespace mgfl
