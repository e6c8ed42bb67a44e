#include "vendors/cuda/operations/column_sums.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::BiasGrad);
