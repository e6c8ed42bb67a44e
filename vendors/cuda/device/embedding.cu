#include "vendors/cuda/operations/embedding.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::Embedding);
MGFL_CUDA_COMPILE(mgfl::cuda::EmbeddingBackward);
