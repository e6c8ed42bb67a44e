/// Runs kernels of the cuda set on a GPU for tests whose tensors lie on the CPU: copies them there, calls,
/// and copies them back. LibTorch's CUDA library is not needed: the tensors stand for memory of CUDA's own.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <tuple>
#include <type_traits>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"
#include "mgfl/override/target.hpp"
#include "vendors/cuda/manifest.hpp"

namespace cuda_tests {

using mgfl::Tensor;

inline void check_cuda(cudaError_t status) {
  mgfl::check_run(status == cudaSuccess, "a test's call of CUDA: ", cudaGetErrorString(status));
}

/// Calls that returned.
inline int& launch_count() {
  static int count = 0;
  return count;
}
inline int launches() { return launch_count(); }

/// A GPU needs no telling to run in another order.
inline void prepare_run(int) {}

/// A contiguous tensor of the shape and dtype of `like` over memory of device `index`, which the caller owns.
inline Tensor device_tensor(void* memory, const Tensor& like, int index = 0) {
  c10::Storage storage(c10::Storage::use_byte_size_t{}, like.nbytes(),
                       at::DataPtr(memory, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index))),
                       nullptr, false);
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  return t;
}

/// The device's copies of CPU tensors; tensors that share memory here share it there.
class OnGpu {
 public:
  OnGpu() = default;
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() {
    for (const auto& [host, device] : copies_) cudaFree(device.memory);
  }

  Tensor operator()(const Tensor& t) {
    if (!t.defined()) return t;
    mgfl::check_run(t.is_contiguous(), "a test's tensor is not contiguous");
    const auto [copy, is_new] = copies_.try_emplace(t.data_ptr());
    if (is_new) {
      copy->second.bytes = t.nbytes();
      check_cuda(cudaMalloc(&copy->second.memory, t.nbytes() + 1));
      check_cuda(cudaMemcpy(copy->second.memory, t.data_ptr(), t.nbytes(), cudaMemcpyHostToDevice));
    }
    return device_tensor(copy->second.memory, t);
  }
  template <class Other>
  const Other& operator()(const Other& other) {
    return other;
  }

  void copy_back() const {
    check_cuda(cudaDeviceSynchronize());
    for (const auto& [host, device] : copies_)
      check_cuda(cudaMemcpy(host, device.memory, device.bytes, cudaMemcpyDeviceToHost));
  }

 private:
  struct Copy {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  std::map<void*, Copy> copies_;
};

template <class Target>
struct GpuKernel {
  template <class... Arguments>
  void operator()(const Arguments&... arguments) const {
    OnGpu on_gpu;
    std::tuple<Arguments...> there(on_gpu(arguments)...);
    std::apply(mgfl::implementation<Target, mgfl::vendors::cuda>::call, there);
    on_gpu.copy_back();
    ++launch_count();
  }
};

template <class Target>
inline constexpr GpuKernel<Target> kernel{};

}  // namespace cuda_tests
