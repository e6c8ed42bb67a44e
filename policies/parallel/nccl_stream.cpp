#include "policies/parallel/nccl_stream.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>

#include "mgfl/base/error.hpp"
#include "policies/distributed/param_and_grad_buffer.hpp"

namespace mgfl::parallel::detail {

namespace {

const c10::impl::DeviceGuardImplInterface& gpus() { return *c10::impl::getDeviceGuardImpl(c10::kCUDA); }

bool captured(const c10::Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native_handle()), &status);
  check_run(error == cudaSuccess, "cudaStreamIsCapturing failed: ", cudaGetErrorString(error), ".");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

c10::Device choose_gpu(int local_rank) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  check_user(error == cudaSuccess && count > 0, "there is no GPU for this rank (local rank ", local_rank,
             "): ", error == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(error),
             ". Run where a GPU and its driver are; CUDA_VISIBLE_DEVICES may hide them.");
  check_run(c10::impl::hasDeviceGuardImpl(c10::kCUDA),
            "LibTorch's CUDA library is not in this process; link torch_cuda.");
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % count));
  use_gpu(device);
  return device;
}

void use_gpu(c10::Device device) { gpus().setDevice(device); }

struct Mark::Point {
  c10::Event event{c10::kCUDA};
  bool in_graph = false;  // nothing runs before the graph does, and then in its order
};

bool Mark::reached() const { return point_->in_graph || point_->event.query(); }

void Mark::make_current_stream_wait() const {
  const auto device = point_->event.device();
  point_->event.block(gpus().getStream(device));
}

void Mark::make_host_wait() const { point_->event.synchronize(); }

struct CommunicationStream::Stream {
  c10::Stream stream;
};

CommunicationStream::CommunicationStream(c10::Device device)
    : own_(new Stream{gpus().getStreamFromGlobalPool(device, /*isHighPriority=*/true)}) {}

CommunicationStream::~CommunicationStream() = default;

Mark CommunicationStream::run(function_ref<void(void*)> enqueue) const {
  const c10::Stream current = gpus().getStream(own_->stream.device());
  const bool capturing = captured(current);
  const c10::Stream used = distributed::_get_communication_stream({own_->stream, current, capturing});
  if (used != current) {
    c10::Event before(c10::kCUDA);
    before.record(current);
    before.block(used);
  }
  auto end = std::make_shared<Mark::Point>();
  end->in_graph = capturing;
  const c10::StreamGuard guard(used);
  enqueue(used.native_handle());
  end->event.record(used);
  return Mark(std::move(end));
}

}  // namespace mgfl::parallel::detail
