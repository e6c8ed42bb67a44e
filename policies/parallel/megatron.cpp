#include "policies/parallel/megatron.hpp"

#include <utility>

namespace mgfl::parallel {

Extents checked_extents(int world, const ModelParallelSizes& sizes) {
  const int tp = sizes.tensor_model_parallel_size, etp = sizes.expert_tensor_parallel_size.value_or(tp);
  const auto extents = extents_for_world(world, {.tp = tp,
                                                 .pp = sizes.pipeline_model_parallel_size,
                                                 .vpp = sizes.virtual_pipeline_model_parallel_size,
                                                 .cp = sizes.context_parallel_size,
                                                 .ep = sizes.expert_model_parallel_size,
                                                 .etp = etp});
  for (const auto& [name, size] : {std::pair("pipeline-model-parallel-size", extents.pp),
                                   {"context-parallel-size", extents.cp},
                                   {"expert-model-parallel-size", extents.ep}})
    check_user(size == 1, name, " is ", size,
               "; this version has tensor and data parallelism only, leave it at 1.");
  check_user(etp == 1 || etp == tp, "expert-tensor-parallel-size is ", etp,
             " and tensor-model-parallel-size ", tp,
             "; this version trains dense models, so let it be 1 or the same.");
  return extents;
}

void check_fits_alone(const ModelParallelSizes& sizes) {
  const int tp = sizes.tensor_model_parallel_size, pp = sizes.pipeline_model_parallel_size,
            cp = sizes.context_parallel_size;
  if (tp > 1 || pp > 1 || cp > 1)
    check_user(false, "tensor-model-parallel-size ", tp, ", pipeline-model-parallel-size ", pp,
               " and context-parallel-size ", cp,
               " need more ranks than this process alone; start it under mpirun, such as mpirun -n ",
               double(tp) * pp * cp, ".");
}

}  // namespace mgfl::parallel
