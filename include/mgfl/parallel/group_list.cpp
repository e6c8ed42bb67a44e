#include "mgfl/parallel/group_list.hpp"

#include <cstdint>
#include <string>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel::detail {

void check_axes_of_a_grid(const std::vector<ListedPlace>& places,
                          function_ref<void(std::size_t, Tensor&)> max) {
  const std::size_t groups = places.size();
  if (groups < 2) return;
  std::string fault;
  for (std::size_t axis = 0; axis < groups; ++axis) {
    // Largest and smallest place along this group; its own place changes, as it must.
    Tensor extremes = zeros({static_cast<std::int64_t>(2 * groups)}, at::kDouble);
    double* place = extremes.mutable_data_ptr<double>();
    for (std::size_t other = 0; other < groups; ++other) {
      if (other == axis) continue;
      place[2 * other] = places[other].rank;
      place[2 * other + 1] = -places[other].rank;
    }
    max(axis, extremes);
    place = extremes.mutable_data_ptr<double>();
    for (std::size_t other = 0; other < groups; ++other)
      if (place[2 * other] != -place[2 * other + 1])
        fault = concat("along its group ", axis, " (of ", places[axis].size, " ranks) the places in group ", other,
                       " (of ", places[other].size, " ranks) run from ", -place[2 * other + 1], " to ",
                       place[2 * other]);
  }
  // Ranks that saw nothing wrong learn of it, so that they fail as well.
  Tensor flag = zeros({1}, at::kDouble).fill_(fault.empty() ? 0.0 : 1.0);
  for (std::size_t group = 0; group < groups; ++group) max(group, flag);
  if (fault.empty()) fault = "other ranks find that places change along more than one group";
  check_user(*flag.const_data_ptr<double>() == 0.0, "group list: ", fault,
             ", so sums over one group after the other would count ranks twice or in unlike orders; list the axes "
             "of one grid of ranks, ordered alike, or one group of all ranks.");
}

}  // namespace mgfl::parallel::detail
