#include "policies/parallel/megatron.hpp"

#include <utility>

namespace mgfl::parallel {

Extents checked_extents(int world, const ModelParallelSizes& sizes) {
  for (const auto& [name, size] :
       {std::pair("tensor_model_parallel_size", sizes.tensor_model_parallel_size),
        {"pipeline_model_parallel_size", sizes.pipeline_model_parallel_size},
        {"virtual_pipeline_model_parallel_size", sizes.virtual_pipeline_model_parallel_size},
        {"context_parallel_size", sizes.context_parallel_size},
        {"expert_model_parallel_size", sizes.expert_model_parallel_size},
        {"expert_tensor_parallel_size", sizes.expert_tensor_parallel_size}}) {
    check_user(size >= 1, name, " is ", size, "; it must be at least 1.");
    check_user(size == 1, name, " is ", size,
               "; this version trains with data parallelism only, leave it at 1.");
  }
  return extents_for_world(world, sizes.tensor_model_parallel_size, sizes.pipeline_model_parallel_size,
                           sizes.context_parallel_size);
}

}  // namespace mgfl::parallel
