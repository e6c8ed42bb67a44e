// policies/parallel/nccl_stream.hpp where there is no GPU: work is done when it is given.
#include "policies/parallel/nccl_stream.hpp"

namespace mgfl::parallel::detail {

c10::Device choose_gpu(int) { return c10::Device(c10::kCPU); }
void use_gpu(c10::Device) {}

struct Mark::Point {};
bool Mark::reached() const { return true; }
void Mark::make_current_stream_wait() const {}
void Mark::make_host_wait() const {}

struct CommunicationStream::Stream {};
CommunicationStream::CommunicationStream(c10::Device) {}
CommunicationStream::~CommunicationStream() = default;

Mark CommunicationStream::run(function_ref<void(void*)> enqueue) const {
  enqueue(nullptr);
  return Mark(std::make_shared<Mark::Point>());
}

}  // namespace mgfl::parallel::detail
