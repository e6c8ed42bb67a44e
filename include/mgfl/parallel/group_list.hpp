/// GroupList<C>: the groups over which a statistic of the gradients is reduced, none, one or several in
/// order.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/staging.hpp"

namespace mgfl::parallel {

namespace detail {

// The errors of a list, out of line: every override header sees this file.
[[noreturn]] void refuse_null_group(std::size_t entry, std::size_t size);
[[noreturn]] void refuse_group_listed_twice(std::size_t first, std::size_t second, std::size_t size);
[[noreturn]] void refuse_several_groups(std::size_t size, const char* what);

/// This rank's place in one group of a list.
struct ListedPlace {
  int rank, size;
};

void check_axes_of_a_grid(const std::vector<ListedPlace>& places,
                          function_ref<void(std::size_t, Tensor&, ReduceOp)> all_reduce);

}  // namespace detail

/// Borrows its groups, which must outlive it. Their order is that in which they are reduced, so ranks that
/// share several groups list them in one order. UserError for a null entry and for a group listed twice.
template <Communicator C>
class GroupList {
 public:
  using communicator_type = C;

  GroupList() = default;
  GroupList(C& group) : groups_{&group} {}
  GroupList(std::vector<C*> groups) : groups_(std::move(groups)) { check(); }
  GroupList(std::span<C* const> groups) : GroupList(std::vector<C*>(groups.begin(), groups.end())) {}
  GroupList(std::initializer_list<C*> groups) : GroupList(std::vector<C*>(groups)) {}

  std::size_t size() const { return groups_.size(); }
  C& operator[](std::size_t i) const { return *groups_[i]; }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

 private:
  void check() const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (!groups_[i]) detail::refuse_null_group(i, size());
      for (std::size_t j = 0; j < i; ++j)
        if (groups_[i] == groups_[j]) detail::refuse_group_listed_twice(j, i, size());
    }
  }

  std::vector<C*> groups_;
};

/// What a GroupList can be made of: one group, a std::vector or std::span of pointers to groups, another
/// list.
template <class Groups>
concept ListsGroups = requires(Groups&& groups) {
  GroupList(std::forward<Groups>(groups));
};

/// The group of a list of one, null for an empty list. UserError for more, in the name of `what`, an
/// original: lists are what vendor default takes.
template <Communicator C>
C* one_group(const GroupList<C>& groups, const char* what) {
  if (groups.size() > 1) detail::refuse_several_groups(groups.size(), what);
  return groups.size() == 1 ? &groups[0] : nullptr;
}

/// UserError unless the groups are axes of one grid of ranks: along each, a rank's place in the others
/// and their sizes stay the same, and a sum over all of them is the same on every rank. Only then do sums
/// over one group after the other count every rank once, in one order for all. Collective over the groups, of
/// which every rank lists as many; silent for fewer than two.
template <Communicator C>
void check_axes_of_a_grid(const GroupList<C>& groups) {
  std::vector<detail::ListedPlace> places;
  for (C* group : groups) places.push_back({group->rank(), group->size()});
  detail::check_axes_of_a_grid(places, [&](std::size_t group, Tensor& tensor, ReduceOp op) {
    all_reduce_staged(tensor, op, groups[group]);
  });
}

}  // namespace mgfl::parallel
