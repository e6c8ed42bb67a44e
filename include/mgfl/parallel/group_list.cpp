#include "mgfl/parallel/group_list.hpp"

#include <algorithm>
#include <cstdint>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel::detail {

void check_each_rank_counts_once(const std::vector<ListedPlace>& places, function_ref<void(Tensor&)> sum) {
  if (places.size() < 2) return;
  std::int64_t own = 0, all = 1;  // this rank's place among all, if the groups are the axes of a grid
  std::vector<int> sizes;
  for (const auto& place : places) {
    own += all * place.rank;
    all *= place.size;
    sizes.push_back(place.size);
  }
  const auto check = [&](bool holds, double counted) {
    check_user(holds, "group list: sums over its groups of ", join(sizes, ", then "), " ranks count ", counted,
               " parts, some rank's more than once or in another order than on other ranks; list groups that "
               "are the axes of one grid of ranks, ordered alike, or one group of all ranks.");
  };
  Tensor one = zeros({1}, at::kDouble).fill_(1.0);
  sum(one);  // first, so that ranks whose grids differ in size do not meet below
  const double counted = *one.const_data_ptr<double>();
  check(counted == static_cast<double>(all), counted);
  Tensor places_taken = zeros({all}, at::kDouble);
  places_taken.mutable_data_ptr<double>()[own] = 1.0;
  sum(places_taken);
  const double* taken = places_taken.const_data_ptr<double>();
  check(std::all_of(taken, taken + all, [](double times) { return times == 1.0; }), counted);
}

}  // namespace mgfl::parallel::detail
