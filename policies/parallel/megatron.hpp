/// Megatron's parallel policy: static extents per axis, a communicator type, and one rank's process groups.
/// Mirrors megatron.core.parallel_state.
#pragma once

#include "mgfl/policy/parallel_policy.hpp"

namespace mgfl::parallel {

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
  Extents extents;
  Place place;
  C* world = nullptr;
  C* data_parallel = nullptr;   // ranks that hold the same weights
  C* model_parallel = nullptr;  // ranks that together hold one copy of the weights
};

/// Data parallelism over all ranks of `world`; `alone` is a group of this rank only.
template <Communicator C>
Context<C> data_parallel_context(C& world, C& alone) {
  const auto extents = extents_for_world(world.size(), 1, 1, 1);
  return {extents, place_of(world.rank(), extents), &world, &world, &alone};
}

/// `Megatron<Tp<1>, Pp<1>, Cp<1>, Ep<1>, Mpi>`: dp is what remains of the world.
template <class TpExtent, class PpExtent, class CpExtent, class EpExtent, Communicator C>
struct Megatron {
  static_assert(TpExtent::value == 1 && PpExtent::value == 1 && CpExtent::value == 1 && EpExtent::value == 1,
                "mgfl: this version trains with data parallelism only; use Tp<1>, Pp<1>, Cp<1>, Ep<1>.");
  using communicator_type = C;
  using context_type = Context<C>;
  static constexpr int pipeline_model_parallel_size = PpExtent::value;
};

/// Data parallelism alone.
template <Communicator C>
using DataParallel = Megatron<Tp<1>, Pp<1>, Cp<1>, Ep<1>, C>;

}  // namespace mgfl::parallel
