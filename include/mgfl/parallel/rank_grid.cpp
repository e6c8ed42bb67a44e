#include "mgfl/parallel/rank_grid.hpp"

#include <range/v3/range/conversion.hpp>
#include <range/v3/view/cartesian_product.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

namespace mgfl::parallel {

namespace {

namespace views = ranges::views;

/// The ranks that are at 0 on all axes outside of `axes`, or inside of them, counted up in the grid's order.
std::vector<int> ranks_along(const RankGenerator& grid, const Axes& axes, bool inside) {
  const auto steps = [&](int place) {
    const Axis axis = grid.order()[place];
    const int stride = grid.stride(axis);
    return views::iota(0, axes.has(axis) == inside ? grid.size(axis) : 1) |
           views::transform([stride](int index) { return index * stride; });
  };
  // The last factor of a product runs fastest, the first axis of an order does.
  return views::cartesian_product(steps(4), steps(3), steps(2), steps(1), steps(0)) |
         views::transform([](const auto& step) {
           const auto& [e, d, c, b, a] = step;
           return a + b + c + d + e;
         }) |
         ranges::to<std::vector<int>>();
}

}  // namespace

std::vector<std::vector<int>> RankGenerator::get_ranks(const Axes& axes) const {
  const auto members = ranks_along(*this, axes, true), firsts = ranks_along(*this, axes, false);
  return firsts | views::transform([&](int first) {
           return members | views::transform([first](int member) { return first + member; }) |
                  ranges::to<std::vector<int>>();
         }) |
         ranges::to<std::vector<std::vector<int>>>();
}

std::vector<std::vector<int>> RankGrid::get_ranks(Group group) const {
  auto groups = generator(group).get_ranks(axes(group));
  for (auto& ranks : groups) {
    if (group == Group::embedding && ranks.size() > 1) ranks = {ranks.front(), ranks.back()};
    if (group == Group::position_embedding) ranks.resize(1);
  }
  return groups;
}

}  // namespace mgfl::parallel
