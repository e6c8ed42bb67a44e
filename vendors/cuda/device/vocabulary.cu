#include "vendors/cuda/operations/vocabulary.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::VocabRowStatistics);
MGFL_CUDA_COMPILE(mgfl::cuda::VocabRowsBackward);
