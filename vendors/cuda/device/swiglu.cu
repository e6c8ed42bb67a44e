#include "vendors/cuda/operations/swiglu.hpp"

#include "vendors/cuda/device/executor.cuh"

MGFL_CUDA_COMPILE(mgfl::cuda::Swiglu);
MGFL_CUDA_COMPILE(mgfl::cuda::SwigluBackward);
