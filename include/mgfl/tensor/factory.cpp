#include "mgfl/tensor/factory.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

namespace {

/// Runs an allocation; LibTorch's own message for want of memory is one for its developers.
template <class Allocate>
Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype, Allocate&& body) {
  try {
    return body();
  } catch (const c10::Error&) {
    throw RunError(concat("a tensor of shape [", join(shape), "] and dtype ", c10::toString(dtype),
                          " cannot be allocated; there is not enough memory for it. Use smaller batches, "
                          "sequences or models."));
  }
}

}  // namespace

void check_device(c10::DeviceType device) {
  check_user(c10::impl::hasDeviceGuardImpl(device), "device \"", c10::DeviceTypeName(device, true),
             "\": this LibTorch has no such device; use \"cpu\", or a LibTorch that was built for it.");
}

Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return allocate(shape, dtype, [&] {
    return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(shape), dtype, c10::nullopt,
                                               at::Device(at::kCPU), c10::nullopt, c10::nullopt);
  });
}

Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype) {
  return allocate(shape, dtype, [&] {
    return at::_ops::zeros::call(c10::fromIntArrayRefSlow(shape), dtype, c10::nullopt, at::Device(at::kCPU),
                                 c10::nullopt);
  });
}

Tensor from_blob(void* bytes, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::from_blob(bytes, shape, at::TensorOptions().dtype(dtype));
}

void mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (a.scalar_type() == at::kHalf) {
    out.copy_(at::_ops::mm::call(a.to(at::kFloat), b.to(at::kFloat)));
    return;
  }
  at::_ops::mm_out::call(a, b, out);
}

void set_num_threads(int threads) { at::set_num_threads(threads); }

int num_threads() { return at::get_num_threads(); }

NoGradGuard::NoGradGuard() : previous_(c10::GradMode::is_enabled()) { c10::GradMode::set_enabled(false); }

NoGradGuard::~NoGradGuard() { c10::GradMode::set_enabled(previous_); }

}  // namespace mgfl
