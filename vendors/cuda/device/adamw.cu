#include "vendors/cuda/operations/adamw.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::AdamW);
