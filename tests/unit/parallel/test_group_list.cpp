#include "tests/support/doctest.hpp"

#include <span>
#include <string>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "policies/parallel/self.hpp"

using mgfl::parallel::GroupList;
using mgfl::parallel::Self;

namespace {

std::vector<Self*> entries(const GroupList<Self>& list) { return {list.begin(), list.end()}; }

}  // namespace

TEST_CASE("a list is made of nothing, one group, or several in order") {
  Self a, b, c;
  std::vector<Self*> several{&b, &a, &c};
  CHECK(GroupList<Self>().size() == 0);
  CHECK(entries(a) == std::vector<Self*>{&a});
  CHECK(entries(several) == several);
  CHECK(entries(std::span<Self* const>(several).subspan(1)) == std::vector<Self*>{&a, &c});
  CHECK(entries({&c, &a}) == std::vector<Self*>{&c, &a});
  CHECK(&GroupList(several)[2] == &c);
  static_assert(std::is_same_v<decltype(GroupList(a)), GroupList<Self>>);
  static_assert(std::is_same_v<decltype(GroupList(several)), GroupList<Self>>);
  static_assert(std::is_same_v<decltype(GroupList(std::span<Self* const>())), GroupList<Self>>);
  static_assert(std::is_same_v<decltype(GroupList(GroupList<Self>())), GroupList<Self>>);
  static_assert(mgfl::parallel::ListsGroups<const std::vector<Self*>&>);
  static_assert(!mgfl::parallel::ListsGroups<std::vector<int>&> && !mgfl::parallel::ListsGroups<int>);
}

TEST_CASE("null entries and groups listed twice are the user's errors") {
  Self a, b;
  CHECK_THROWS_WITH_AS((GroupList<Self>{&a, nullptr}), doctest::Contains("entry 1 of 2 is null"),
                       mgfl::UserError);
  CHECK_THROWS_WITH_AS((GroupList<Self>{&a, &b, &a}), doctest::Contains("entries 0 and 2 of 3 are the same"),
                       mgfl::UserError);
}

TEST_CASE("originals take one group or none") {
  Self a, b;
  CHECK(mgfl::parallel::one_group(GroupList<Self>(), "f") == nullptr);
  CHECK(mgfl::parallel::one_group(GroupList<Self>(a), "f") == &a);
  CHECK_THROWS_WITH_AS(mgfl::parallel::one_group(GroupList<Self>{&a, &b}, "f"),
                       doctest::Contains("f: the original takes one group and was given 2"), mgfl::UserError);
}
