#include "mgfl/base/xxh64.hpp"

#include <algorithm>
#include <cstring>

namespace mgfl {

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                        kPrime3 = 0x165667B19E3779F9u, kPrime4 = 0x85EBCA77C2B2AE63u,
                        kPrime5 = 0x27D4EB2F165667C5u;

std::uint64_t rotate(std::uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

template <class Word>
Word load(const unsigned char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return rotate(lane + word * kPrime2, 31) * kPrime1;
}

void mix_stripe(std::uint64_t (&lanes)[4], const unsigned char* bytes) {
  for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], load<std::uint64_t>(bytes + 8 * i));
}

}  // namespace

Xxh64::Xxh64(std::uint64_t seed)
    : lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}, seed_(seed) {}

void Xxh64::update(const void* bytes, std::size_t size) {
  auto from = static_cast<const unsigned char*>(bytes);
  total_ += size;
  if (buffered_ > 0) {
    const std::size_t taken = std::min(size, sizeof(buffer_) - buffered_);
    std::memcpy(buffer_ + buffered_, from, taken);
    buffered_ += taken;
    from += taken;
    size -= taken;
    if (buffered_ < sizeof(buffer_)) return;
    mix_stripe(lanes_, buffer_);
    buffered_ = 0;
  }
  for (; size >= sizeof(buffer_); from += sizeof(buffer_), size -= sizeof(buffer_)) mix_stripe(lanes_, from);
  if (size > 0) std::memcpy(buffer_, from, size);
  buffered_ = size;
}

std::uint64_t Xxh64::digest() const {
  std::uint64_t hash = seed_ + kPrime5;
  if (total_ >= sizeof(buffer_)) {
    hash = rotate(lanes_[0], 1) + rotate(lanes_[1], 7) + rotate(lanes_[2], 12) + rotate(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const unsigned char* at = buffer_;
  const unsigned char* end = buffer_ + buffered_;
  for (; end - at >= 8; at += 8)
    hash = rotate(hash ^ mix(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; end - at >= 4; at += 4)
    hash = rotate(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; at < end; ++at) hash = rotate(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace mgfl
