/// Starts an operation of the cuda set on a GPU. The bodies are in device/*.cu, compiled by nvcc.
#pragma once

namespace mgfl::cuda {

/// Where a call runs: the device's number, and the cudaStream_t it joins (null: the device's default stream).
struct Place {
  int device;
  void* stream;
};

/// Enqueues the operation's passes and returns. Throws RunError with the operation's name and CUDA's own
/// words where they cannot be started. Defined for each operation of operations/ and each dtype.
template <class Operation>
void launch(const Place& place, const Operation& operation);

}  // namespace mgfl::cuda
