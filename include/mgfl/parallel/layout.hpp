/// Extents of the parallel axes and the rank grid in Megatron's order; the same constexpr checks serve static
/// and run-time sizes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "mgfl/base/error.hpp"

namespace mgfl::parallel {

/// A size that is known only when the program starts, as in std::mdspan.
inline constexpr int dynamic = -1;

/// Extents of all axes. world = tp * cp * dp * pp; etp and ep divide the same ranks anew inside the expert
/// layers, vpp the layers of a stage.
struct Extents {
  int tp = 1, pp = 1, vpp = 1, cp = 1, ep = 1, etp = 1, dp = 1;
  constexpr int world() const { return tp * pp * cp * dp; }
};

/// Place of one rank on every axis.
struct Place {
  int tp = 0, pp = 0, cp = 0, dp = 0;
};

/// Order tp-cp-ep-dp-pp, leftmost fastest: rank = tp + tp_size * (cp + cp_size * (dp + dp_size * pp)).
/// Mirrors megatron.core.parallel_state.initialize_model_parallel.
constexpr Place place_of(int rank, const Extents& extents) {
  Place place;
  place.tp = rank % extents.tp;
  rank /= extents.tp;
  place.cp = rank % extents.cp;
  rank /= extents.cp;
  place.dp = rank % extents.dp;
  place.pp = rank / extents.dp;
  return place;
}

constexpr int rank_of(const Place& place, const Extents& extents) {
  return place.tp + extents.tp * (place.cp + extents.cp * (place.dp + extents.dp * place.pp));
}

static_assert(rank_of({.tp = 1, .pp = 1, .dp = 1}, {.tp = 2, .pp = 2, .cp = 2, .dp = 2}) == 1 + 8 + 4);
static_assert(place_of(13, {.tp = 2, .pp = 2, .cp = 2, .dp = 2}).tp == 1);

/// dp = world / (tp pp cp), refused with all numbers where it does not divide or one of them is below 1.
inline Extents extents_for_world(int world, int tp, int pp, int cp) {
  check_user(world > 0 && tp > 0 && pp > 0 && cp > 0, "world size ", world, ", tensor-model-parallel-size ",
             tp, ", pipeline-model-parallel-size ", pp, " and context-parallel-size ", cp,
             " must each be 1 or more.");
  const int model = tp * pp * cp;
  check_user(world % model == 0, "world size ", world, " is not divisible by tensor-model-parallel-size ", tp,
             " x pipeline-model-parallel-size ", pp, " x context-parallel-size ", cp, " = ", model,
             "; start a multiple of ", model, " processes.");
  return {.tp = tp, .pp = pp, .cp = cp, .dp = world / model};
}

/// UserError where an extent of a policy is neither `dynamic` nor the context's.
inline void check_static_extent(const char* name, int compiled, int given) {
  check_user(compiled == dynamic || compiled == given, "the engine was compiled for ", name, " ", compiled,
             ", its context has ", given, "; give both the same, or compile it for a dynamic extent.");
}

}  // namespace mgfl::parallel
