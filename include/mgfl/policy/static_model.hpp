/// A parallel policy for one model, whose sizes are known when compiling: a layout that does not fit it does
/// not compile.
#pragma once

#include "mgfl/parallel/model_fit.hpp"
#include "mgfl/policy/parallel_policy.hpp"

namespace mgfl::parallel {

/// The policy `P`, for models of these sizes only:
/// `StaticModel<ModelSizes{.num_layers = 24, ...}, Megatron<Tp<3>, Pp<1>, Cp<1>, Ep<1>, Mpi>>`.
/// The rules are those of check_model_fits; extents of `P` that are `dynamic` are left to that.
template <ModelSizes Sizes, ParallelPolicy P>
struct StaticModel : P {
  static constexpr ModelSizes model_sizes = Sizes;
  static constexpr Extents static_extents{.tp = P::tensor_model_parallel_size,
                                          .pp = P::pipeline_model_parallel_size,
                                          .vpp = virtual_pipeline_size_of<P>()};

  static_assert(fit::sizes_are_there(Sizes),
                "mgfl: StaticModel needs every size of its model, those of experts where there are any.");
  static_assert(fit::attention_heads(Sizes, static_extents),
                "mgfl: tensor_model_parallel_size does not divide num_attention_heads.");
  static_assert(fit::query_groups(Sizes, static_extents),
                "mgfl: of tensor_model_parallel_size and num_query_groups neither divides the other.");
  static_assert(fit::ffn(Sizes, static_extents),
                "mgfl: tensor_model_parallel_size does not divide ffn_hidden_size.");
  static_assert(
      fit::chunks(static_extents),
      "mgfl: virtual_pipeline_model_parallel_size above 1 needs pipeline_model_parallel_size above 1.");
  static_assert(fit::layers(Sizes, static_extents),
                "mgfl: pipeline_model_parallel_size does not divide num_layers.");
};

template <class P>
concept NamesModelSizes = requires {
  { P::model_sizes } -> std::convertible_to<ModelSizes>;
};

/// check_model_fits, for an engine of policy `P`: what `P` fixes when compiling must be what is given.
template <class P>
void check_model_fits(const ModelSizes& sizes, const Extents& extents) {
  check_static_extents<P>(extents);
  if constexpr (NamesModelSizes<P>) check_static_model(P::model_sizes, sizes);
  check_model_fits(sizes, extents);
}

}  // namespace mgfl::parallel
