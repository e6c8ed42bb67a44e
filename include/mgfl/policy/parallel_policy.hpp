/// The contract of a parallel policy: which communicator, which extents are static, and the context of one
/// rank's groups.
#pragma once

#include <concepts>

#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/layout.hpp"

namespace mgfl::parallel {

template <class P>
concept NamesCommunicator = Communicator<typename P::communicator_type>;

/// A context holds one rank's place and groups. It is made once and passed to whoever needs it.
template <class P>
concept HasContext = requires(const typename P::context_type& context) {
  { context.extents } -> std::convertible_to<Extents>;
  { context.place } -> std::convertible_to<Place>;
  { context.world } -> std::convertible_to<typename P::communicator_type*>;
  { context.tensor_parallel } -> std::convertible_to<typename P::communicator_type*>;
  { context.data_parallel } -> std::convertible_to<typename P::communicator_type*>;
  { context.model_parallel } -> std::convertible_to<typename P::communicator_type*>;
};

/// The number of ranks that share a layer; `dynamic` where the context says it.
template <class P>
concept NamesTensorSize = requires {
  { P::tensor_model_parallel_size } -> std::convertible_to<int>;
};

/// The number of pipeline stages, known when compiling, chooses the schedule.
template <class P>
concept NamesPipelineSize = requires {
  { P::pipeline_model_parallel_size } -> std::convertible_to<int>;
};

/// Chunks of layers that each pipeline stage holds: what the policy says, or one.
template <class P>
consteval int virtual_pipeline_size_of() {
  if constexpr (requires { P::virtual_pipeline_model_parallel_size; })
    return P::virtual_pipeline_model_parallel_size;
  else
    return 1;
}

template <class P>
concept ParallelPolicy = NamesCommunicator<P> && HasContext<P> && NamesTensorSize<P> && NamesPipelineSize<P>;

/// Refuses, with both numbers, a context whose extents are not those that `P` was compiled for.
template <class P>
requires NamesTensorSize<P> && NamesPipelineSize<P>
void check_static_extents(const Extents& extents) {
  check_static_extent("tensor-model-parallel-size", P::tensor_model_parallel_size, extents.tp);
  check_static_extent("pipeline-model-parallel-size", P::pipeline_model_parallel_size, extents.pp);
  check_static_extent("virtual-pipeline-model-parallel-size", virtual_pipeline_size_of<P>(), extents.vpp);
}

}  // namespace mgfl::parallel
