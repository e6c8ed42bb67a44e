// The rank grid against plain loops over its axes.
#include "tests/support/doctest.hpp"

#include <set>
#include <tuple>
#include <vector>

#include "mgfl/parallel/layout.hpp"

using mgfl::parallel::Extents;
using mgfl::parallel::extents_for_world;
using mgfl::parallel::Place;
using mgfl::parallel::place_of;
using mgfl::parallel::rank_of;

namespace {

auto tuple_of(const Place& place) { return std::tuple(place.tp, place.cp, place.dp, place.pp); }

/// Ranks that differ along one axis only, with the place on it set to 0, are a group.
std::vector<std::vector<int>> groups_along(int Place::*axis, const Extents& extents) {
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(extents.world()));
  for (int rank = 0; rank < extents.world(); ++rank) {
    Place first = place_of(rank, extents);
    first.*axis = 0;
    groups[static_cast<std::size_t>(rank_of(first, extents))].push_back(rank);
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

}  // namespace

TEST_CASE("places count up along tp, cp, dp, pp, each once") {
  for (const Extents extents :
       {Extents{.tp = 5, .pp = 4, .dp = 6}, Extents{}, Extents{.tp = 2, .pp = 3, .cp = 2, .dp = 2}}) {
    int rank = 0;
    std::set<std::tuple<int, int, int, int>> seen;
    for (int pp = 0; pp < extents.pp; ++pp)
      for (int dp = 0; dp < extents.dp; ++dp)
        for (int cp = 0; cp < extents.cp; ++cp)
          for (int tp = 0; tp < extents.tp; ++tp) {
            const Place place = place_of(rank, extents);
            CHECK(tuple_of(place) == std::tuple(tp, cp, dp, pp));
            CHECK(rank_of(place, extents) == rank);
            seen.insert(tuple_of(place));
            ++rank;
          }
    CHECK(rank == extents.world());
    CHECK(static_cast<int>(seen.size()) == extents.world());
  }
  CHECK(Extents{.tp = 5, .pp = 4, .dp = 6}.world() == 120);
}

TEST_CASE("groups of every axis have each rank once") {
  const Extents extents = extents_for_world(120, 5, 4, 1);
  CHECK(extents.dp == 6);
  const std::tuple<int Place::*, int> axes[] = {
      {&Place::tp, 5}, {&Place::pp, 4}, {&Place::dp, 6}, {&Place::cp, 1}};
  for (const auto& [axis, size] : axes) {
    const auto groups = groups_along(axis, extents);
    CHECK(static_cast<int>(groups.size()) == 120 / size);
    std::set<int> ranks;
    for (const auto& group : groups) {
      CHECK(static_cast<int>(group.size()) == size);
      for (std::size_t i = 0; i < group.size(); ++i)
        CHECK(place_of(group[i], extents).*axis == static_cast<int>(i));
      ranks.insert(group.begin(), group.end());
    }
    CHECK(ranks.size() == 120);
  }
}

TEST_CASE("sizes that do not divide the world, or are none, are refused with their numbers") {
  CHECK_THROWS_WITH_AS(extents_for_world(6, 4, 1, 1), doctest::Contains("world size 6 is not divisible"),
                       mgfl::UserError);
  for (const auto& [world, tp, pp, cp] : std::vector<std::tuple<int, int, int, int>>{
           {0, 1, 1, 1}, {4, 0, 1, 1}, {4, 1, 0, 1}, {4, 1, 1, 0}, {4, -1, -2, 1}, {-4, 1, 1, 1}})
    CHECK_THROWS_WITH_AS(extents_for_world(world, tp, pp, cp), doctest::Contains("must each be 1 or more"),
                         mgfl::UserError);
}
