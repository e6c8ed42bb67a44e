/// Groups of a test's ranks, and what all ranks say together.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "mgfl/parallel/group_list.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/mpi.hpp"
#include "tests/support/mpi.hpp"

namespace mgfl_test {

using mgfl::parallel::Mpi;

/// The world, and groups made on it. `add` is collective over the world.
class RankGroups {
 public:
  Mpi world{session()};

  /// One group for each set of ranks, whose order is the group's; sets must not overlap. A rank in none of
  /// them gets a null pointer.
  Mpi* add(std::initializer_list<std::vector<int>> sets) {
    int color = static_cast<int>(sets.size()), key = 0, index = 0;
    for (const auto& set : sets) {
      const auto found = std::find(set.begin(), set.end(), world.rank());
      if (found != set.end()) {
        color = index;
        key = static_cast<int>(found - set.begin());
      }
      ++index;
    }
    groups_.push_back(std::make_unique<Mpi>(world.split(color, key, "test")));
    return color < static_cast<int>(sets.size()) ? groups_.back().get() : nullptr;
  }

 private:
  std::vector<std::unique_ptr<Mpi>> groups_;
};

/// Whether every rank has the bits of rank 0.
inline bool same_bits_everywhere(const std::vector<double>& values, Mpi& world) {
  const auto count = static_cast<std::int64_t>(values.size());
  mgfl::Tensor all = mgfl::empty({world.size(), count}, at::kDouble), own = mgfl::empty({count}, at::kDouble);
  std::memcpy(own.mutable_data_ptr(), values.data(), own.nbytes());
  world.all_gather(own, all);
  for (int rank = 1; rank < world.size(); ++rank)
    if (std::memcmp(all.const_data_ptr<double>() + rank * count, all.const_data_ptr<double>(), own.nbytes()))
      return false;
  return true;
}

}  // namespace mgfl_test
