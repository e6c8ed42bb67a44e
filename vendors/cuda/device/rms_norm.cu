#include "vendors/cuda/operations/rms_norm.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::RmsNorm);
MGFL_CUDA_COMPILE(mgfl::cuda::RmsNormBackward);
