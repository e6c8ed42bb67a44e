#include "vendors/cuda/operations/rotary.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::QkNormRotary);
MGFL_CUDA_COMPILE(mgfl::cuda::QkNormRotaryBackward);
