#include "policies/parallel/megatron.hpp"

#include <utility>

namespace mgfl::parallel {

namespace {

int expert_tensor_parallel_size(const ModelParallelSizes& sizes) {
  return sizes.expert_tensor_parallel_size.value_or(sizes.tensor_model_parallel_size);
}

}  // namespace

Extents checked_extents(int world, const ModelParallelSizes& sizes) {
  const int etp = expert_tensor_parallel_size(sizes);
  const std::pair<const char*, int> others[] = {
      {"pipeline_model_parallel_size", sizes.pipeline_model_parallel_size},
      {"virtual_pipeline_model_parallel_size", sizes.virtual_pipeline_model_parallel_size},
      {"context_parallel_size", sizes.context_parallel_size},
      {"expert_model_parallel_size", sizes.expert_model_parallel_size}};
  const auto at_least_1 = [](const char* name, int size) {
    check_user(size >= 1, name, " is ", size, "; it must be at least 1.");
  };
  at_least_1("tensor_model_parallel_size", sizes.tensor_model_parallel_size);
  for (const auto& [name, size] : others) {
    at_least_1(name, size);
    check_user(size == 1, name, " is ", size,
               "; this version has tensor and data parallelism only, leave it at 1.");
  }
  at_least_1("expert_tensor_parallel_size", etp);
  check_user(etp == 1 || etp == sizes.tensor_model_parallel_size, "expert_tensor_parallel_size is ", etp,
             " and tensor_model_parallel_size ", sizes.tensor_model_parallel_size,
             "; this version trains dense models, so let it be 1 or the same.");
  Extents extents = extents_for_world(world, sizes.tensor_model_parallel_size,
                                      sizes.pipeline_model_parallel_size, sizes.context_parallel_size);
  extents.etp = etp;
  return extents;
}

void check_fits_alone(const ModelParallelSizes& sizes) {
  const int tp = sizes.tensor_model_parallel_size, pp = sizes.pipeline_model_parallel_size,
            cp = sizes.context_parallel_size;
  if (tp > 1 || pp > 1 || cp > 1)
    check_user(false, "tensor-model-parallel-size ", tp, ", pipeline-model-parallel-size ", pp,
               " and context-parallel-size ", cp,
               " need more ranks than this process alone; start it under mpirun, such as mpirun -n ",
               std::int64_t{tp} * pp * cp, ".");
}

}  // namespace mgfl::parallel
