/// Extents of the parallel axes, and the rules that a layout of any size obeys; the same constexpr checks
/// serve static and run-time sizes.
#pragma once

#include <cstdint>

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

/// UserError where a size is below 1, or model chunks are asked for without pipeline stages.
constexpr void check_extents(const Extents& extents) {
  const struct {
    const char* name;
    int size;
  } all[] = {{"tensor-model-parallel-size", extents.tp},
             {"pipeline-model-parallel-size", extents.pp},
             {"virtual-pipeline-model-parallel-size", extents.vpp},
             {"context-parallel-size", extents.cp},
             {"expert-model-parallel-size", extents.ep},
             {"expert-tensor-parallel-size", extents.etp},
             {"data-parallel size", extents.dp}};
  for (const auto& [name, size] : all)
    if (size < 1) throw UserError(concat("layout: ", name, " is ", size, "; it must be 1 or more."));
  if (extents.vpp > 1 && extents.pp == 1)
    throw UserError(concat("layout: virtual-pipeline-model-parallel-size ", extents.vpp,
                           " needs pipeline-model-parallel-size 2 or more, which is 1; give it stages, or "
                           "one chunk."));
}

/// `sizes` with dp = world / (tp pp cp), whatever their dp is. UserError, with all numbers, where that does
/// not divide, and as check_extents. Mirrors megatron.core.parallel_state.initialize_model_parallel.
constexpr Extents extents_for_world(int world, Extents sizes) {
  sizes.dp = 1;
  check_extents(sizes);
  if (world < 1) throw UserError(concat("layout: world size ", world, " must be 1 or more."));
  if (world % sizes.tp != 0 || world / sizes.tp % sizes.pp != 0 ||
      world / sizes.tp / sizes.pp % sizes.cp != 0) {
    const double model = double(sizes.tp) * sizes.pp * sizes.cp;
    throw UserError(concat("layout: world size ", world, " is not divisible by tensor-model-parallel-size ",
                           sizes.tp, " x pipeline-model-parallel-size ", sizes.pp,
                           " x context-parallel-size ", sizes.cp, " = ", model, "; start a multiple of ",
                           model, " processes."));
  }
  sizes.dp = world / sizes.tp / sizes.pp / sizes.cp;
  return sizes;
}

/// UserError where an extent of a policy is neither `dynamic` nor the context's.
inline void check_static_extent(const char* name, int compiled, int given) {
  check_user(compiled == dynamic || compiled == given, "the engine was compiled for ", name, " ", compiled,
             ", its context has ", given, "; give both the same, or compile it for a dynamic extent.");
}

}  // namespace mgfl::parallel
