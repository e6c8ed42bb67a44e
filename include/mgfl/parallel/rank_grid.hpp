/// Which ranks form which group, in Megatron's order: constexpr for one rank at a time, and by enumeration.
/// Mirrors megatron.core.parallel_state.RankGenerator and the groups of initialize_model_parallel.
#pragma once

#include <iterator>
#include <limits>
#include <string_view>
#include <vector>

#include "mgfl/parallel/layout.hpp"

namespace mgfl::parallel {

enum class Axis { tp, cp, ep, dp, pp };
inline constexpr std::string_view axis_names[] = {"tp", "cp", "ep", "dp", "pp"};

/// Axes in the order in which ranks count up, the leftmost fastest.
inline constexpr std::string_view default_order = "tp-cp-ep-dp-pp";

/// Axes, each at most once, in the order of a text such as "tp-pp".
class Axes {
 public:
  /// UserError for a word that is no axis, or that comes twice.
  constexpr Axes(std::string_view text) {
    for (std::size_t first = 0; first <= text.size();) {
      const auto word = text.substr(first, text.find('-', first) - first);
      first += word.size() + 1;
      int axis = 0;
      while (axis < 5 && axis_names[axis] != word) ++axis;
      if (axis == 5)
        throw UserError(concat("layout: \"", text, "\" names an axis \"", word,
                               "\"; axes are tp, cp, ep, dp and pp, with - between them."));
      if (has(Axis(axis))) throw UserError(concat("layout: \"", text, "\" names ", word, " twice."));
      append(Axis(axis));
    }
  }
  constexpr Axes(const char* text) : Axes(std::string_view(text)) {}

  constexpr int count() const { return count_; }
  constexpr Axis operator[](int place) const { return axes_[place]; }
  constexpr bool has(Axis axis) const {
    for (int place = 0; place < count_; ++place)
      if (axes_[place] == axis) return true;
    return false;
  }
  constexpr void append(Axis axis) { axes_[count_++] = axis; }

 private:
  Axis axes_[5]{};
  int count_ = 0;
};

/// A grid of ranks over five axes. A group of the axes "tp-pp" is the ranks that differ along these only;
/// groups, and members of one, count up in the grid's order, whatever the order of the axes that are named.
class RankGenerator {
 public:
  struct Sizes {
    int tp = 1, ep = 1, dp = 1, pp = 1, cp = 1;
  };

  /// Axes of size 1 may be left out of `order`. UserError for other ones, for sizes below 1, and for more
  /// ranks than an int counts.
  constexpr RankGenerator(const Sizes& sizes, std::string_view order = default_order)
      : sizes_{sizes.tp, sizes.cp, sizes.ep, sizes.dp, sizes.pp}, order_(order) {
    for (int a = 0; a < 5; ++a) {
      if (sizes_[a] < 1)
        throw UserError(
            concat("layout: axis ", axis_names[a], " has size ", sizes_[a], "; it must be 1 or more."));
      if (order_.has(Axis(a))) continue;
      if (sizes_[a] > 1)
        throw UserError(concat("layout: the order \"", order, "\" lacks axis ", axis_names[a], " of size ",
                               sizes_[a], "; name each axis that has more than one rank."));
      order_.append(Axis(a));
    }
    for (int place = 0; place < 5; ++place) {
      strides_[int(order_[place])] = world_;
      const int size = this->size(order_[place]);
      if (world_ > std::numeric_limits<int>::max() / size)
        throw UserError(concat("layout: tp ", sizes.tp, ", cp ", sizes.cp, ", ep ", sizes.ep, ", dp ",
                               sizes.dp, " and pp ", sizes.pp, " make more ranks than can be counted."));
      world_ *= size;
    }
  }

  constexpr int world() const { return world_; }
  constexpr const Axes& order() const { return order_; }
  constexpr int size(Axis axis) const { return sizes_[int(axis)]; }
  constexpr int stride(Axis axis) const { return strides_[int(axis)]; }
  constexpr int index(Axis axis, int rank) const { return rank / stride(axis) % size(axis); }

  constexpr int group_size(const Axes& axes) const {
    int product = 1;
    for (int place = 0; place < axes.count(); ++place) product *= size(axes[place]);
    return product;
  }
  constexpr int group_count(const Axes& axes) const { return world_ / group_size(axes); }

  constexpr int rank(const Axes& axes, int group, int member) const {
    int rank = 0;
    for (int place = 0; place < 5; ++place) {
      const Axis axis = order_[place];
      int& rest = axes.has(axis) ? member : group;
      rank += rest % size(axis) * stride(axis);
      rest /= size(axis);
    }
    return rank;
  }
  constexpr int group_of(const Axes& axes, int rank) const { return count(axes, false, rank); }
  constexpr int member_of(const Axes& axes, int rank) const { return count(axes, true, rank); }

  /// All groups of these axes, each a list of ranks.
  std::vector<std::vector<int>> get_ranks(const Axes& axes) const;

 private:
  /// The rank's number among those that differ along the axes inside, or outside, of `axes` only.
  constexpr int count(const Axes& axes, bool inside, int rank) const {
    int number = 0, stride = 1;
    for (int place = 0; place < 5; ++place) {
      const Axis axis = order_[place];
      if (axes.has(axis) != inside) continue;
      number += index(axis, rank) * stride;
      stride *= size(axis);
    }
    return number;
  }

  int sizes_[5], strides_[5]{};
  Axes order_;
  int world_ = 1;
};

/// Megatron's groups. Those of experts lie on a grid of their own, {etp, ep, edp, pp}.
enum class Group {
  data_parallel,
  data_parallel_with_context,
  context_parallel,
  tensor_model_parallel,
  pipeline_model_parallel,
  model_parallel,
  embedding,           // first and last stage; one rank where there is one stage
  position_embedding,  // first stage
  tensor_and_data_parallel_with_context,
  tensor_and_data_parallel,
  tensor_and_context_parallel,
  expert_model_parallel,
  expert_tensor_parallel,
  expert_tensor_and_model_parallel,
  expert_tensor_model_pipeline_parallel,
  expert_data_parallel
};

namespace detail {
/// What the groups of each kind reach over.
inline constexpr Axes axes_of_groups[] = {"dp", "dp-cp", "cp",       "tp",       "pp",    "tp-pp",
                                          "pp", "pp",    "tp-dp-cp", "tp-dp",    "tp-cp",  // dense
                                          "ep", "tp",    "tp-ep",    "tp-ep-pp", "dp"};    // experts
static_assert(std::size(axes_of_groups) == int(Group::expert_data_parallel) + 1);
}  // namespace detail

/// The grids of dense and of expert layers over the same ranks, and every group of them.
class RankGrid {
 public:
  /// edp = world / (etp ep pp). UserError where that does not divide, where the two grids disagree on the
  /// pipelines' ranks, and as check_extents and RankGenerator.
  constexpr explicit RankGrid(const Extents& extents, std::string_view order = default_order)
      : extents_((check_extents(extents), extents)),
        decoder_({.tp = extents.tp, .dp = extents.dp, .pp = extents.pp, .cp = extents.cp}, order),
        expert_({.tp = extents.etp, .ep = extents.ep, .dp = expert_dp(), .pp = extents.pp}, order) {
    if (extents.pp > 1 && !order.ends_with("pp") && extents.dp != edp())
      throw UserError(concat("layout: order \"", order, "\" does not end with pp, so the data-parallel size ",
                             extents.dp, " and that of experts, ", edp(),
                             ", must be one; choose others, or order tp-cp-ep-dp-pp."));
    if (extents.pp > 1 && decoder_.stride(Axis::pp) != expert_.stride(Axis::pp))
      throw UserError(concat("layout: in order \"", order, "\" stages are ", decoder_.stride(Axis::pp),
                             " ranks apart for dense layers and ", expert_.stride(Axis::pp),
                             " for experts; choose an order that ends with pp."));
  }

  constexpr const Extents& extents() const { return extents_; }
  constexpr int edp() const { return expert_.size(Axis::dp); }
  constexpr const RankGenerator& decoder() const { return decoder_; }
  constexpr const RankGenerator& expert() const { return expert_; }

  constexpr Place place(int rank) const {
    return {.tp = decoder_.index(Axis::tp, rank),
            .pp = decoder_.index(Axis::pp, rank),
            .cp = decoder_.index(Axis::cp, rank),
            .dp = decoder_.index(Axis::dp, rank)};
  }

  constexpr int group_count(Group group) const { return generator(group).group_count(axes(group)); }
  constexpr int group_size(Group group) const {
    const int all = generator(group).group_size(axes(group));
    if (group == Group::position_embedding) return 1;
    return group == Group::embedding && all > 2 ? 2 : all;
  }
  /// The rank that is member `member` of the `number`-th group of a kind.
  constexpr int rank(Group group, int number, int member) const {
    const bool last = group == Group::embedding && member == 1;
    return generator(group).rank(axes(group), number, last ? extents_.pp - 1 : member);
  }
  /// The number of the rank's group, and the rank's place in it; -1 where it is in none of this kind.
  constexpr int group_of(Group group, int rank) const {
    return member_of(group, rank) < 0 ? -1 : generator(group).group_of(axes(group), rank);
  }
  constexpr int member_of(Group group, int rank) const {
    const int member = generator(group).member_of(axes(group), rank);
    if (group != Group::embedding && group != Group::position_embedding) return member;
    if (member == 0) return 0;
    return group == Group::embedding && member == extents_.pp - 1 ? 1 : -1;
  }

  /// All groups of one kind, each a list of ranks.
  std::vector<std::vector<int>> get_ranks(Group group) const;

 private:
  constexpr int expert_dp() const {
    const int world = decoder_.world(), etp = extents_.etp, ep = extents_.ep, pp = extents_.pp;
    if (world % etp != 0 || world / etp % ep != 0 || world / etp / ep % pp != 0)
      throw UserError(concat("layout: world size ", world,
                             " is not divisible by expert-tensor-parallel-size ", etp,
                             " x expert-model-parallel-size ", ep, " x pipeline-model-parallel-size ", pp,
                             " = ", double(etp) * ep * pp, "; choose other sizes for the experts."));
    return world / etp / ep / pp;
  }

  static constexpr bool of_experts(Group group) { return group >= Group::expert_model_parallel; }
  constexpr const RankGenerator& generator(Group group) const {
    return of_experts(group) ? expert_ : decoder_;
  }
  static constexpr const Axes& axes(Group group) { return detail::axes_of_groups[int(group)]; }

  Extents extents_;
  RankGenerator decoder_, expert_;
};

// The examples of Megatron's documentation: tp = cp = dp = pp = 2, and 16 ranks with ep = 4 and pp = 2.
static_assert(RankGrid({.tp = 2, .pp = 2, .cp = 2, .dp = 2}).decoder().stride(Axis::pp) == 8);
static_assert(RankGrid({.pp = 2, .ep = 4, .dp = 8}).expert().stride(Axis::dp) == 4);

}  // namespace mgfl::parallel
