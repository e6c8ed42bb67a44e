#include "policies/model/arena.hpp"

#include <algorithm>

namespace mgfl::model {

namespace {
constexpr std::int64_t alignment = 64;
constexpr std::int64_t slab_bytes = std::int64_t{32} << 20;
}  // namespace

Tensor Arena::take(at::IntArrayRef shape, at::ScalarType dtype) {
  std::int64_t elements = 1;
  for (auto extent : shape) elements *= extent;
  const auto bytes =
      (elements * static_cast<std::int64_t>(c10::elementSize(dtype)) + alignment - 1) / alignment * alignment;
  while (place_.slab < slabs_.size() && place_.used + bytes > slabs_[place_.slab].numel()) {
    ++place_.slab;
    place_.used = 0;
  }
  if (place_.slab == slabs_.size()) slabs_.push_back(empty({std::max(bytes, slab_bytes)}, at::kByte));
  auto* start = slabs_[place_.slab].data_ptr<std::uint8_t>() + place_.used;
  place_.used += bytes;
  return from_blob(start, shape, dtype);
}

}  // namespace mgfl::model
