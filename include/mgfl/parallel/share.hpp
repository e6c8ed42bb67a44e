/// Deals items to the ranks of a group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel {

/// Items [first, last) of n that a rank of so many takes: contiguous shares in rank order, the first ones
/// larger by one where n does not divide.
inline std::pair<std::int64_t, std::int64_t> share_of(std::int64_t n, std::int64_t rank, std::int64_t size) {
  return {rank * (n / size) + std::min(rank, n % size),
          (rank + 1) * (n / size) + std::min(rank + 1, n % size)};
}

/// The same of this rank of the group.
template <HasPlace C>
std::pair<std::int64_t, std::int64_t> share_of(std::int64_t n, const C& group) {
  return share_of(n, group.rank(), group.size());
}

}  // namespace mgfl::parallel
