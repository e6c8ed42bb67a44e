/// Makes and copies tensors without LibTorch's operator headers.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

/// CPU tensor with uninitialised contents.
Tensor empty(at::IntArrayRef shape, at::ScalarType dtype);

/// CPU tensor of zeros.
Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype);

/// Tensor over memory that the caller owns and keeps alive; `bytes` must hold the whole shape.
Tensor from_blob(void* bytes, at::IntArrayRef shape, at::ScalarType dtype);

/// out = a b, matrices of one dtype; fp16 is computed in fp32 (CPUs run fp16 GEMMs a hundred times slower)
/// and rounded once.
void mm_out(const Tensor& a, const Tensor& b, Tensor& out);

/// UserError unless this process can hold tensors on that kind of device.
void check_device(c10::DeviceType device);

/// Sets and reads the number of threads that one operation uses on this rank.
void set_num_threads(int threads);
int num_threads();

/// Switches autograd off in this thread, for its lifetime. mgfl writes its backward passes by hand.
class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace mgfl
