/// Megatron's parallel policy: static or dynamic extents per axis, a communicator type, and one rank's
/// process groups. Mirrors megatron.core.parallel_state.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mgfl/parallel/rank_grid.hpp"
#include "mgfl/policy/parallel_policy.hpp"

namespace mgfl::parallel {

/// Extents of `Megatron`: a number, or `dynamic` where the context brings it.
template <int Size>
struct Tp : std::integral_constant<int, Size> {};
template <int Size>
struct Pp : std::integral_constant<int, Size> {};
template <int Size>
struct Cp : std::integral_constant<int, Size> {};
template <int Size>
struct Ep : std::integral_constant<int, Size> {};

/// One rank's place on the grid and the groups it belongs to. Groups are borrowed: whoever made them keeps
/// them alive.
template <Communicator C>
struct Context {
  using communicator_type = C;

  Extents extents;
  Place place;
  C* world = nullptr;
  C* tensor_parallel = nullptr;  // ranks that share one copy of each layer
  C* data_parallel = nullptr;    // ranks that hold the same weights
  C* model_parallel = nullptr;   // ranks that together hold one copy of the weights
};

/// Data parallelism over all ranks of `world`; `alone` is a group of this rank only.
template <Communicator C>
Context<C> data_parallel_context(C& world, C& alone) {
  return {{.dp = world.size()}, {.dp = world.rank()}, &world, &alone, &world, &alone};
}

/// Megatron's arguments of initialize_model_parallel; data parallelism is what remains of the world.
struct ModelParallelSizes {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  int virtual_pipeline_model_parallel_size = 1;
  int context_parallel_size = 1;
  int expert_model_parallel_size = 1;
  std::optional<int> expert_tensor_parallel_size = std::nullopt;  // left out: as tensor_model_parallel_size
  std::string order{default_order};  // of the axes over the ranks, the leftmost fastest
};

/// The extents of a world of so many ranks. UserError where the sizes do not divide it, or need more than
/// this version has.
Extents checked_extents(int world, const ModelParallelSizes& sizes);

/// UserError where the sizes need more ranks than a program has that was started alone.
void check_fits_alone(const ModelParallelSizes& sizes);

/// Owns one rank's groups. Stays where it was made: contexts point into it.
template <Communicator C>
requires HasSplit<C>
class ParallelState {
 public:
  /// UserError as checked_extents and RankGrid. Collective.
  ParallelState(C world, const ModelParallelSizes& sizes)
      : world_(std::move(world)),
        grid_(checked_extents(world_.size(), sizes), sizes.order),
        tensor_parallel_(group_of(Group::tensor_model_parallel, "tensor parallel")),
        data_parallel_(group_of(Group::data_parallel_with_context, "data parallel")),
        model_parallel_(group_of(Group::model_parallel, "model parallel")) {}
  ParallelState(const ParallelState&) = delete;
  ParallelState& operator=(const ParallelState&) = delete;

  C& world() { return world_; }
  const RankGrid& grid() const { return grid_; }
  Context<C> context() {
    return {grid_.extents(), grid_.place(world_.rank()), &world_, &tensor_parallel_, &data_parallel_,
            &model_parallel_};
  }

 private:
  C group_of(Group group, std::string_view name) {
    const int rank = world_.rank();
    return world_.split(grid_.group_of(group, rank), grid_.member_of(group, rank), name);
  }

  C world_;
  RankGrid grid_;
  C tensor_parallel_, data_parallel_, model_parallel_;
};

/// One rank's groups for these sizes: `auto state = initialize_model_parallel(Mpi(session));`, then an
/// engine's context is `state.context()`. Collective.
/// Mirrors megatron.core.parallel_state.initialize_model_parallel.
template <Communicator C>
ParallelState<C> initialize_model_parallel(C world, const ModelParallelSizes& sizes = {}) {
  return ParallelState<C>(std::move(world), sizes);
}

/// `Megatron<Tp<2>, Pp<1>, Cp<1>, Ep<1>, Mpi>`: dp is what remains of the world.
template <class TpExtent, class PpExtent, class CpExtent, class EpExtent, Communicator C>
struct Megatron {
  static_assert(TpExtent::value >= 1 || TpExtent::value == dynamic,
                "mgfl: an extent of Megatron<...> is at least 1, or parallel::dynamic.");
  static_assert(PpExtent::value == 1 && CpExtent::value == 1 && EpExtent::value == 1,
                "mgfl: this version has tensor and data parallelism only; use Pp<1>, Cp<1>, Ep<1>.");
  using communicator_type = C;
  using context_type = Context<C>;
  static constexpr int tensor_model_parallel_size = TpExtent::value;
  static constexpr int pipeline_model_parallel_size = PpExtent::value;
};

/// Data parallelism alone.
template <Communicator C>
using DataParallel = Megatron<Tp<1>, Pp<1>, Cp<1>, Ep<1>, C>;

/// Tensor and data parallelism, in whatever sizes the context has.
template <Communicator C>
using TensorAndDataParallel = Megatron<Tp<dynamic>, Pp<1>, Cp<1>, Ep<1>, C>;

}  // namespace mgfl::parallel
