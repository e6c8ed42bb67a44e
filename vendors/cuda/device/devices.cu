#include <cuda_runtime_api.h>

#include "vendors/cuda/device/place.hpp"

namespace mgfl::cuda {

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status != cudaSuccess ? cudaGetErrorString(status) : count == 0 ? "no CUDA device" : "";
}

}  // namespace mgfl::cuda
