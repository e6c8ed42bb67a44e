// The few operators that tensors of the chip need: allocation, views, copies.
#include "tests/override/chip.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

#include "mgfl/base/error.hpp"

namespace mgfl_test {

namespace {

struct Memory : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = std::malloc(bytes + 1);
    return {data, data, &std::free, at::Device(chip, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

Memory memory;
const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef shape, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(shape, &memory, keys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef shape, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(shape, strides, &memory, keys, dtype.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  mgfl::check_run(from.is_contiguous() && to.is_contiguous() && from.scalar_type() == to.scalar_type() &&
                      from.numel() == to.numel(),
                  "the test's chip copies contiguous tensors of one dtype");
  std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  return to;
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<chip>);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_copy_from", &copy_from);
}

}  // namespace

}  // namespace mgfl_test
