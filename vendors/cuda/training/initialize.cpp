#include "vendors/cuda/training/initialize.hpp"

#include "vendors/cuda/device/place.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

std::string implementation<targets::compile_dependencies, vendors::cuda>::call() {
  return cuda::idle_kernels(cuda::why_no_device(), cuda::libtorch_has_cuda());
}

}  // namespace mgfl
