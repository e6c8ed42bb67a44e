/// Deals items to the ranks of a group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel {

/// Items [first, last) of n that this rank of the group takes: contiguous shares in rank order, the first
/// ones larger by one where n does not divide.
template <HasPlace C>
std::pair<std::int64_t, std::int64_t> share_of(std::int64_t n, const C& group) {
  const std::int64_t size = group.size(), rank = group.rank();
  return {rank * (n / size) + std::min(rank, n % size),
          (rank + 1) * (n / size) + std::min(rank + 1, n % size)};
}

}  // namespace mgfl::parallel
