/// The GPU of a rank, and the stream on which one group communicates: its order with the stream on which the
/// caller computes.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "mgfl/base/function_ref.hpp"

namespace mgfl::parallel::detail {

/// This rank's GPU, local_rank modulo their number, which becomes this thread's current device. UserError
/// where there is none.
c10::Device choose_gpu(int local_rank);

/// Makes it the current device of this thread.
void use_gpu(c10::Device device);

/// The end of what a stream had been given when the mark was made.
class Mark {
 public:
  struct Point;
  explicit Mark(std::shared_ptr<const Point> point) : point_(std::move(point)) {}
  bool reached() const;                   // from any thread
  void make_current_stream_wait() const;  // what is given to it from now on
  void make_host_wait() const;

 private:
  std::shared_ptr<const Point> point_;
};

/// A stream of one group's own, from LibTorch's pool.
class CommunicationStream {
 public:
  explicit CommunicationStream(c10::Device device);
  ~CommunicationStream();

  /// Calls `enqueue` with the stream of the communication, a cudaStream_t, as LibTorch's current one, so that
  /// tensors made meanwhile are its own. It comes after all that the caller's current stream was given.
  /// Which stream that is, says param_and_grad_buffer._get_communication_stream.
  Mark run(function_ref<void(void* stream)> enqueue) const;

 private:
  struct Stream;
  std::unique_ptr<const Stream> own_;
};

}  // namespace mgfl::parallel::detail
