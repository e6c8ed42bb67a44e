// The rank grid: against groups written by hand, against plain loops over its axes, and at compile time.
#include "tests/support/doctest.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "mgfl/parallel/rank_grid.hpp"

using namespace mgfl::parallel;
using mgfl::UserError;

namespace {

using Groups = std::vector<std::vector<int>>;

constexpr Group all_groups[] = {Group::data_parallel,
                                Group::data_parallel_with_context,
                                Group::context_parallel,
                                Group::tensor_model_parallel,
                                Group::pipeline_model_parallel,
                                Group::model_parallel,
                                Group::embedding,
                                Group::position_embedding,
                                Group::tensor_and_data_parallel_with_context,
                                Group::tensor_and_data_parallel,
                                Group::tensor_and_context_parallel,
                                Group::expert_model_parallel,
                                Group::expert_tensor_parallel,
                                Group::expert_tensor_and_model_parallel,
                                Group::expert_tensor_model_pipeline_parallel,
                                Group::expert_data_parallel};

constexpr bool of_some_stages(Group group) {
  return group == Group::embedding || group == Group::position_embedding;
}

/// Whether the groups of every kind have each rank once, or at most once where they are of some stages only.
constexpr bool groups_partition_ranks(const RankGrid& grid) {
  const int world = grid.decoder().world();
  for (const Group group : all_groups) {
    int members = 0;
    for (int rank = 0; rank < world; ++rank) {
      const int number = grid.group_of(group, rank), member = grid.member_of(group, rank);
      if (number < 0 && member < 0 && of_some_stages(group)) continue;
      if (number < 0 || number >= grid.group_count(group) || member < 0 || member >= grid.group_size(group))
        return false;
      if (grid.rank(group, number, member) != rank) return false;  // so no two ranks share a seat
      ++members;
    }
    if (members != grid.group_count(group) * grid.group_size(group)) return false;
  }
  return true;
}

static_assert(groups_partition_ranks(RankGrid({})));
static_assert(groups_partition_ranks(RankGrid({.tp = 2, .pp = 2, .cp = 2, .etp = 2, .dp = 2})));
static_assert(groups_partition_ranks(RankGrid({.pp = 2, .ep = 4, .dp = 8})));
static_assert(groups_partition_ranks(RankGrid({.tp = 3, .pp = 3, .dp = 2})));
static_assert(groups_partition_ranks(RankGrid({.tp = 2, .cp = 2, .ep = 2, .etp = 4, .dp = 2})));
static_assert(groups_partition_ranks(RankGrid({.tp = 2, .pp = 2, .etp = 2, .dp = 3}, "tp-cp-ep-pp-dp")));
static_assert(groups_partition_ranks(RankGrid({.tp = 2, .pp = 4, .etp = 2, .dp = 2}, "dp-pp-tp")));

constexpr RankGrid of_16({.tp = 2, .pp = 2, .cp = 2, .etp = 2, .dp = 2});
static_assert(of_16.decoder().world() == 16 && of_16.edp() == 4);
static_assert(of_16.place(13).tp == 1 && of_16.place(13).cp == 0 && of_16.place(13).dp == 1 &&
              of_16.place(13).pp == 1);  // 13 = 1 + 0 + 4 + 8
static_assert(of_16.decoder().stride(Axis::tp) == 1 && of_16.decoder().stride(Axis::cp) == 2 &&
              of_16.decoder().stride(Axis::dp) == 4 && of_16.decoder().stride(Axis::pp) == 8);
static_assert(Axes("tp-pp").has(Axis::pp) && !Axes("tp-pp").has(Axis::dp) && Axes("pp").count() == 1);
static_assert(extents_for_world(16, {.tp = 2, .pp = 2, .cp = 2}).dp == 2);

/// Groups of `axes` on a grid with these axes, fastest first: by loops that know nothing of strides.
Groups groups_by_loops(const std::vector<std::pair<std::string, int>>& grid,
                       const std::set<std::string>& axes) {
  std::vector<int> at(grid.size(), 0);
  std::map<std::vector<int>, std::vector<int>> groups;  // by the place on the other axes, slowest first
  for (int rank = 0;; ++rank) {
    std::vector<int> others;
    for (std::size_t a = grid.size(); a-- > 0;)
      if (!axes.contains(grid[a].first)) others.push_back(at[a]);
    groups[others].push_back(rank);
    std::size_t a = 0;
    while (a < grid.size() && ++at[a] == grid[a].second) at[a++] = 0;
    if (a == grid.size()) break;
  }
  Groups found;
  for (auto& [others, ranks] : groups) found.push_back(std::move(ranks));
  return found;
}

void check_groups(const RankGrid& grid, Group group, const Groups& expected) {
  CAPTURE(int(group));
  CHECK(grid.get_ranks(group) == expected);
  REQUIRE(grid.group_count(group) == static_cast<int>(expected.size()));
  for (int number = 0; number < grid.group_count(group); ++number) {
    const auto& ranks = expected[static_cast<std::size_t>(number)];
    REQUIRE(grid.group_size(group) == static_cast<int>(ranks.size()));
    for (int member = 0; member < grid.group_size(group); ++member) {
      const int rank = ranks[static_cast<std::size_t>(member)];
      CHECK(grid.rank(group, number, member) == rank);
      CHECK(grid.group_of(group, rank) == number);
      CHECK(grid.member_of(group, rank) == member);
    }
  }
}

}  // namespace

TEST_CASE("tp 5, pp 4, dp 6: 120 places, each once, counted up along tp, cp, ep, dp, pp") {
  const RankGrid grid({.tp = 5, .pp = 4, .dp = 6});
  const auto all = grid.decoder().get_ranks(default_order);
  REQUIRE(all.size() == 1);
  REQUIRE(all[0].size() == 120);
  std::set<std::tuple<int, int, int>> seen;
  int rank = 0;
  for (int pp = 0; pp < 4; ++pp)
    for (int dp = 0; dp < 6; ++dp)
      for (int tp = 0; tp < 5; ++tp, ++rank) {
        CHECK(all[0][static_cast<std::size_t>(rank)] == rank);
        const Place place = grid.place(rank);
        CHECK(std::tuple(place.tp, place.cp, place.dp, place.pp) == std::tuple(tp, 0, dp, pp));
        seen.insert({place.tp, place.dp, place.pp});
      }
  CHECK(seen.size() == 120);
  for (const auto& [axes, size] : {std::pair("tp", 5), {"pp", 4}, {"dp", 6}, {"cp", 1}, {"ep", 1}}) {
    const auto groups = grid.decoder().get_ranks(axes);
    CHECK(static_cast<int>(groups.size()) == 120 / size);
    std::set<int> ranks;
    for (const auto& group : groups) {
      CHECK(static_cast<int>(group.size()) == size);
      ranks.insert(group.begin(), group.end());
    }
    CHECK(ranks.size() == 120);
  }
  CHECK(RankGrid({}).decoder().get_ranks(default_order) == Groups{{0}});
}

TEST_CASE("groups of 2 x 2 x 2 x 2 ranks") {  // rank = tp + 2 cp + 4 dp + 8 pp
  check_groups(of_16, Group::tensor_model_parallel,
               {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}});
  check_groups(of_16, Group::context_parallel,
               {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  check_groups(of_16, Group::data_parallel,
               {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}});
  check_groups(of_16, Group::data_parallel_with_context,
               {{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}});
  const Groups pipelines = {{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}};
  check_groups(of_16, Group::pipeline_model_parallel, pipelines);
  check_groups(of_16, Group::embedding, pipelines);
  check_groups(of_16, Group::position_embedding, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}});
  check_groups(of_16, Group::model_parallel, {{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}});
  check_groups(of_16, Group::tensor_and_context_parallel,
               {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}});
  check_groups(of_16, Group::tensor_and_data_parallel,
               {{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}});
  check_groups(of_16, Group::tensor_and_data_parallel_with_context,
               {{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}});
  CHECK(of_16.group_of(Group::position_embedding, 9) == -1);
}

TEST_CASE("groups of experts on 16 ranks with etp 1, ep 4, pp 2") {  // rank = ep + 4 edp + 8 pp
  const RankGrid grid({.pp = 2, .ep = 4, .dp = 8});
  CHECK(grid.edp() == 2);
  const Groups experts = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}};
  check_groups(grid, Group::expert_model_parallel, experts);
  check_groups(grid, Group::expert_tensor_and_model_parallel, experts);
  check_groups(grid, Group::expert_data_parallel,
               {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}});
  check_groups(grid, Group::expert_tensor_model_pipeline_parallel,
               {{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}});
  Groups alone;
  for (int rank = 0; rank < 16; ++rank) alone.push_back({rank});
  check_groups(grid, Group::expert_tensor_parallel, alone);
}

TEST_CASE("tp 2, pp 4 on 16 ranks: the embedding is that of the first and the last stage") {
  const RankGrid grid({.tp = 2, .pp = 4, .etp = 2, .dp = 2});
  check_groups(grid, Group::pipeline_model_parallel,
               {{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}});
  check_groups(grid, Group::embedding, {{0, 12}, {1, 13}, {2, 14}, {3, 15}});
  check_groups(grid, Group::data_parallel,
               {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  CHECK(grid.group_of(Group::embedding, 4) == -1);
  CHECK(grid.member_of(Group::embedding, 8) == -1);
  check_groups(RankGrid({.dp = 3}), Group::embedding, {{0}, {1}, {2}});
}

TEST_CASE("groups in any order of axes are those that loops find") {
  struct Case {
    Extents extents;
    const char* order;
    std::vector<std::pair<std::string, int>> dense, experts;
  };
  const Case cases[] = {{{.tp = 2, .pp = 2, .cp = 3, .ep = 3, .etp = 2, .dp = 4},
                         "tp-cp-ep-dp-pp",
                         {{"tp", 2}, {"cp", 3}, {"ep", 1}, {"dp", 4}, {"pp", 2}},
                         {{"tp", 2}, {"cp", 1}, {"ep", 3}, {"dp", 4}, {"pp", 2}}},
                        {{.tp = 2, .pp = 3, .etp = 2, .dp = 2},
                         "tp-cp-ep-pp-dp",
                         {{"tp", 2}, {"pp", 3}, {"dp", 2}},
                         {{"tp", 2}, {"pp", 3}, {"dp", 2}}},
                        {{.tp = 4, .cp = 2, .ep = 4, .etp = 1, .dp = 2},
                         "ep-dp-tp-cp",
                         {{"ep", 1}, {"dp", 2}, {"tp", 4}, {"cp", 2}},
                         {{"ep", 4}, {"dp", 4}, {"tp", 1}, {"cp", 1}}},
                        {{.tp = 3, .pp = 2, .ep = 2, .etp = 3, .dp = 4},
                         "dp-tp-ep-cp-pp",
                         {{"dp", 4}, {"tp", 3}, {"pp", 2}},
                         {{"dp", 2}, {"tp", 3}, {"ep", 2}, {"pp", 2}}}};
  for (const Case& wanted : cases) {
    CAPTURE(wanted.order);
    const auto &dense = wanted.dense, &experts = wanted.experts;
    const RankGrid grid(wanted.extents, wanted.order);
    check_groups(grid, Group::data_parallel, groups_by_loops(dense, {"dp"}));
    check_groups(grid, Group::data_parallel_with_context, groups_by_loops(dense, {"dp", "cp"}));
    check_groups(grid, Group::context_parallel, groups_by_loops(dense, {"cp"}));
    check_groups(grid, Group::tensor_model_parallel, groups_by_loops(dense, {"tp"}));
    check_groups(grid, Group::pipeline_model_parallel, groups_by_loops(dense, {"pp"}));
    check_groups(grid, Group::model_parallel, groups_by_loops(dense, {"tp", "pp"}));
    check_groups(grid, Group::tensor_and_data_parallel_with_context,
                 groups_by_loops(dense, {"tp", "dp", "cp"}));
    check_groups(grid, Group::tensor_and_data_parallel, groups_by_loops(dense, {"tp", "dp"}));
    check_groups(grid, Group::tensor_and_context_parallel, groups_by_loops(dense, {"tp", "cp"}));
    check_groups(grid, Group::expert_model_parallel, groups_by_loops(experts, {"ep"}));
    check_groups(grid, Group::expert_tensor_parallel, groups_by_loops(experts, {"tp"}));
    check_groups(grid, Group::expert_tensor_and_model_parallel, groups_by_loops(experts, {"tp", "ep"}));
    check_groups(grid, Group::expert_tensor_model_pipeline_parallel,
                 groups_by_loops(experts, {"tp", "ep", "pp"}));
    check_groups(grid, Group::expert_data_parallel, groups_by_loops(experts, {"dp"}));
    CHECK(groups_by_loops(experts, {"pp"}) == groups_by_loops(dense, {"pp"}));
    CHECK(groups_partition_ranks(grid));
    CHECK(grid.decoder().get_ranks("pp-tp") == grid.decoder().get_ranks("tp-pp"));
  }
}

TEST_CASE("sizes that do not divide the world, or are none, are refused with their numbers") {
  const auto world_of = [](int world, const Extents& sizes) { return extents_for_world(world, sizes).dp; };
  CHECK(world_of(8, {.tp = 2, .pp = 2, .cp = 2}) == 1);
  CHECK(world_of(120, {.tp = 5, .pp = 4, .dp = 0}) == 6);
  CHECK_THROWS_WITH_AS(world_of(6, {.tp = 4}),
                       "layout: world size 6 is not divisible by tensor-model-parallel-size 4 x "
                       "pipeline-model-parallel-size 1 x context-parallel-size 1 = 4; start a multiple of 4 "
                       "processes.",
                       UserError);
  CHECK_THROWS_WITH_AS(world_of(4, {.tp = 2, .pp = 2, .cp = 2}), doctest::Contains("= 8; start"), UserError);
  CHECK_THROWS_WITH_AS(world_of(4, {.tp = 2147483647, .pp = 2147483647, .cp = 2147483647}),
                       doctest::Contains("world size 4 is not divisible"), UserError);
  CHECK_THROWS_WITH_AS(world_of(0, {}), "layout: world size 0 must be 1 or more.", UserError);
  CHECK_THROWS_WITH_AS(world_of(-4, {}), doctest::Contains("world size -4"), UserError);
  CHECK_THROWS_WITH_AS(world_of(4, {.vpp = 2}), doctest::Contains("parallel-size 2 needs"), UserError);
  for (int Extents::*axis :
       {&Extents::tp, &Extents::pp, &Extents::vpp, &Extents::cp, &Extents::ep, &Extents::etp, &Extents::dp})
    for (const int size : {0, -1, -2147483647 - 1}) {
      Extents extents;
      extents.*axis = size;
      CHECK_THROWS_WITH_AS(RankGrid{extents}, doctest::Contains("it must be 1 or more."), UserError);
      if (axis != &Extents::dp) CHECK_THROWS_AS(world_of(4, extents), UserError);
    }
  for (const auto& sizes : {RankGenerator::Sizes{.tp = 0}, {.ep = 0}, {.dp = 0}, {.pp = 0}, {.cp = 0}})
    CHECK_THROWS_WITH_AS(RankGenerator{sizes}, doctest::Contains("has size 0; it must be 1 or more."),
                         UserError);
  CHECK_THROWS_WITH_AS(RankGrid({.tp = 65536, .dp = 32768}),
                       doctest::Contains("more ranks than can be counted"), UserError);
}

TEST_CASE("experts must divide the same ranks, and have the same pipelines") {
  CHECK_THROWS_WITH_AS(
      RankGrid({.ep = 3, .etp = 2, .dp = 8}),
      "layout: world size 8 is not divisible by expert-tensor-parallel-size 2 x "
      "expert-model-parallel-size 3 x pipeline-model-parallel-size 1 = 6; choose other sizes for "
      "the experts.",
      UserError);
  CHECK_NOTHROW(RankGrid({.tp = 2, .pp = 2, .ep = 2, .dp = 2}, "tp-cp-ep-pp-dp"));  // edp 2, as dp
  CHECK_THROWS_WITH_AS(RankGrid({.tp = 2, .pp = 2, .dp = 2}, "tp-cp-ep-pp-dp"),
                       doctest::Contains("the data-parallel size 2 and that of experts, 4, must be one"),
                       UserError);
  CHECK_NOTHROW(RankGrid({.tp = 2, .dp = 2}, "tp-cp-ep-pp-dp"));  // one stage
  CHECK_THROWS_WITH_AS(RankGrid({.tp = 2, .pp = 2, .ep = 2, .dp = 2}, "tp-pp-ep-cp-dp"),
                       doctest::Contains("stages are 2 ranks apart for dense layers and 1 for experts"),
                       UserError);
}

TEST_CASE("texts that are no order and no set of axes") {
  CHECK_NOTHROW(RankGrid({.tp = 2, .etp = 2}, "tp"));  // axes of size 1 may be left out
  CHECK_THROWS_WITH_AS(RankGrid({.tp = 2, .etp = 2, .dp = 2}, "tp-pp"),
                       doctest::Contains("lacks axis dp of size 2"), UserError);
  CHECK_THROWS_WITH_AS(Axes("tp-tp"), "layout: \"tp-tp\" names tp twice.", UserError);
  for (const char* text :
       {"", "-", "tp-", "-tp", "tp--pp", "TP", "tp pp", "tp,pp", "etp", "tp-cp-ep-dp-pp-x"})
    CHECK_THROWS_WITH_AS(Axes{text}, doctest::Contains("axes are tp, cp, ep, dp and pp"), UserError);
}
