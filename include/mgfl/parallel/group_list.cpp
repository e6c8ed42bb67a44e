#include "mgfl/parallel/group_list.hpp"

#include <cstdint>
#include <random>
#include <string>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel::detail {

void refuse_null_group(std::size_t entry, std::size_t size) {
  throw UserError(concat("group list: entry ", entry, " of ", size,
                         " is null; leave out the groups that this rank does not belong to."));
}

void refuse_group_listed_twice(std::size_t first, std::size_t second, std::size_t size) {
  throw UserError(concat("group list: entries ", first, " and ", second, " of ", size,
                         " are the same group, whose ranks would count twice; list it once."));
}

void refuse_several_groups(std::size_t size, const char* what) {
  throw UserError(concat(what, ": the original takes one group and was given ", size,
                         "; vendor 'default' takes a list: build with its override."));
}

void check_axes_of_a_grid(const std::vector<ListedPlace>& places,
                          function_ref<void(std::size_t, Tensor&, ReduceOp)> all_reduce) {
  const std::size_t groups = places.size();
  if (groups < 2) return;
  // Places that fit can still belong to groups that twist around each other: then unlike ranks are summed.
  Tensor sum = zeros({1}, at::kDouble).fill_(static_cast<double>(std::random_device()()));  // sums stay exact
  for (std::size_t group = 0; group < groups; ++group) all_reduce(group, sum, ReduceOp::sum);
  std::string fault;
  for (std::size_t axis = 0; axis < groups; ++axis) {
    // Largest and smallest place and size along this group, those in itself stay 0; and of the sum.
    Tensor extremes = zeros({2 * static_cast<std::int64_t>(groups) + 1, 2}, at::kDouble);
    double* found = extremes.mutable_data_ptr<double>();
    const auto compare = [&](std::size_t i, double value) {
      found[2 * i] = value;
      found[2 * i + 1] = -value;
    };
    for (std::size_t other = 0; other < groups; ++other) {
      if (other == axis) continue;
      compare(2 * other, places[other].rank);
      compare(2 * other + 1, places[other].size);
    }
    compare(2 * groups, *sum.const_data_ptr<double>());
    all_reduce(axis, extremes, ReduceOp::max);
    found = extremes.mutable_data_ptr<double>();
    const auto differs = [&](std::size_t i) { return found[2 * i] != -found[2 * i + 1]; };
    for (std::size_t i = 0; i < 2 * groups; ++i)
      if (differs(i))
        fault = concat("along its group ", axis, " of ", places[axis].size, " ranks, ",
                       i % 2 ? "the sizes of group " : "the places in group ", i / 2, " run from ",
                       -found[2 * i + 1], " to ", found[2 * i]);
    if (fault.empty() && differs(2 * groups))
      fault =
          concat("along its group ", axis, " of ", places[axis].size, " ranks, a sum over the list differs");
  }
  // Ranks that saw nothing wrong learn of it, so that they fail as well; twisted groups pass it on by and by.
  Tensor flag = zeros({1}, at::kDouble).fill_(fault.empty() ? 0.0 : 1.0);
  for (std::size_t round = 0; round < groups; ++round)
    for (std::size_t group = 0; group < groups; ++group) all_reduce(group, flag, ReduceOp::max);
  if (fault.empty()) fault = "other ranks find that places or sizes change along more than one group";
  check_user(
      *flag.const_data_ptr<double>() == 0.0, "group list: ", fault,
      ", so sums over one group after the other would miss ranks, count them twice or add in unlike orders; "
      "list the axes of one grid of ranks, ordered alike, or one group of all ranks.");
}

}  // namespace mgfl::parallel::detail
