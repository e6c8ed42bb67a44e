// The cases of tests/unit/cuda_kernels on a GPU. Without one: what such a call says, and status 77, skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/unit/cuda_kernels/support.hpp"

#include <cstdio>
#include <string>

#include "vendors/cuda/device/place.hpp"

using namespace cuda_tests;

TEST_CASE("a kernel that cannot start says which, where and why") {
  const Tensor gate_up = mgfl::zeros({2, 4}, at::kFloat), half = mgfl::zeros({2, 2}, at::kFloat);
  constexpr int missing_device = 99;
  Tensor activated = device_tensor(half.data_ptr(), half, missing_device);
  std::string text = "no error";
  try {
    mgfl::implementation<targets::swiglu, mgfl::vendors::cuda>::call(
        device_tensor(gate_up.data_ptr(), gate_up, missing_device), activated);
  } catch (const mgfl::RunError& error) {
    text = error.what();
  }
  CAPTURE(text);
  CHECK(text.find("CUDA kernel swiglu cannot start on device 99: ") == 0);
  CHECK(text.find("(cudaError") != std::string::npos);
}

TEST_CASE("a machine without a device is told of") {
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  CHECK(mgfl::cuda::why_no_device().empty() != none);
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return context.run();
  context.addFilter("test-case-exclude", "cuda *");
  const int result = context.run();
  std::printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(status));
  constexpr int skipped = 77;
  return result == 0 ? skipped : result;
}
