/// Teams of CUDA threads, and the executor that launches an operation's passes on a stream; what they promise is
/// said in operations/operation.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mgfl/base/error.hpp"
#include "vendors/cuda/device/launch.hpp"
#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

inline constexpr int block_threads = 256, warp_threads = 32;

/// A whole block, or one warp of it.
template <int Threads>
struct DeviceTeam {
  static_assert(Threads == block_threads || Threads == warp_threads);
  static constexpr int threads = Threads, per_block = block_threads / Threads;

  template <class Body>
  __device__ void each(std::int64_t n, Body body) const {
    for (std::int64_t i = threadIdx.x; i < n; i += threads) body(i);
  }

  template <class T, class Element, class Combine>
  __device__ T reduce(std::int64_t n, T initial, Element element, Combine combine) const {
    T value = initial;
    for (std::int64_t i = threadIdx.x; i < n; i += threads) value = combine(value, element(i));
    __shared__ T all_values[per_block][threads];
    T* values = all_values[threadIdx.y];
    values[threadIdx.x] = value;
    wait();
    for (unsigned stride = threads / 2; stride > 0; stride /= 2) {
      if (threadIdx.x < stride) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + stride]);
      wait();
    }
    value = values[0];
    wait();  // the next reduction may use the same memory
    return value;
  }

 private:
  __device__ static void wait() {
    if constexpr (threads == warp_threads)
      __syncwarp();
    else
      __syncthreads();
  }
};

template <int Threads, class Pass>
__global__ void __launch_bounds__(block_threads) run_rows(const Pass pass, std::int64_t rows) {
  using Team = DeviceTeam<Threads>;
  const std::int64_t step = std::int64_t{gridDim.x} * Team::per_block;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::per_block + threadIdx.y; row < rows; row += step)
    pass(Team{}, row);
}

/// Makes the place's device current for its lifetime; scratch memory is the stream's own.
class DeviceExecutor {
 public:
  DeviceExecutor(const Place& place, const char* operation)
      : place_(place), stream_(static_cast<cudaStream_t>(place.stream)), operation_(operation) {
    check(cudaGetDevice(&previous_));
    check(cudaSetDevice(place.device));
  }
  ~DeviceExecutor() {
    for (void* memory : scratch_) cudaFreeAsync(memory, stream_);
    cudaSetDevice(previous_);
  }
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  template <int Threads, class Pass>
  void rows(std::int64_t count, const Pass& pass) {
    if (count == 0) return;
    constexpr std::int64_t most_blocks = std::int64_t{1} << 30;
    constexpr int per_block = DeviceTeam<Threads>::per_block;
    const std::int64_t wanted = pieces(count, per_block);
    const auto blocks = static_cast<unsigned>(wanted < most_blocks ? wanted : most_blocks);
    run_rows<Threads><<<blocks, dim3(Threads, per_block), 0, stream_>>>(pass, count);
    check(cudaGetLastError());
  }

  template <class T>
  T* scratch(std::int64_t n) {
    void* memory = nullptr;
    scratch_.reserve(scratch_.size() + 1);
    check(cudaMallocAsync(&memory, static_cast<std::size_t>(n) * sizeof(T), stream_));
    scratch_.push_back(memory);
    return static_cast<T*>(memory);
  }

 private:
  void check(cudaError_t status) const {
    check_run(status == cudaSuccess, "CUDA kernel ", operation_, " cannot start on device ", place_.device, ": ",
              cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
  }

  Place place_;
  cudaStream_t stream_;
  const char* operation_;
  int previous_ = 0;
  std::vector<void*> scratch_;
};

template <class Operation>
void launch(const Place& place, const Operation& operation) {
  DeviceExecutor executor(place, Operation::name);
  operation.run(executor);
}

}  // namespace mgfl::cuda

/// Compiles an operation for every dtype.
#define MGFL_CUDA_COMPILE(Operation)                                        \
  template void mgfl::cuda::launch(const mgfl::cuda::Place&, const Operation<double>&); \
  template void mgfl::cuda::launch(const mgfl::cuda::Place&, const Operation<float>&);  \
  template void mgfl::cuda::launch(const mgfl::cuda::Place&, const Operation<c10::BFloat16>&); \
  template void mgfl::cuda::launch(const mgfl::cuda::Place&, const Operation<c10::Half>&)
