#include "tests/vendors/chip.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

// LibTorch leaves one device type to backends outside its tree. This one computes on the CPU, but its memory
// holds every byte inverted: whoever reads it as host memory reads nonsense.
namespace mgfl_test::chip {
namespace {

using mgfl::Tensor;

const c10::Device device(c10::DeviceType::PrivateUse1, 0);

std::vector<std::function<void()>>& started() {
  static std::vector<std::function<void()>> copies;
  return copies;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::malloc(bytes);
    return {memory, memory, &std::free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
Memory memory;

/// Swaps between what the chip stores and what the CPU computes with; both ways are the same.
void invert(const Tensor& t) {
  auto* bytes = static_cast<unsigned char*>(t.storage().mutable_data());
  for (std::size_t i = 0; i < t.storage().nbytes(); ++i) bytes[i] = static_cast<unsigned char>(~bytes[i]);
}

/// A view of a chip tensor's storage as host memory.
Tensor as_host(const Tensor& t) {
  const Tensor view = at::detail::empty_cpu({0}, t.scalar_type());
  c10::Storage storage(c10::Storage::use_byte_size_t{}, t.storage().nbytes(),
                       c10::DataPtr(t.storage().mutable_data(), c10::kCPU), nullptr, false);
  view.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return view;
}

void transfer(const Tensor& from, const Tensor& to) {
  const bool chip_reads = !from.is_cpu(), chip_writes = !to.is_cpu();
  const bool same_memory = chip_reads && chip_writes && from.is_alias_of(to);
  if (chip_reads) invert(from);
  if (chip_writes && !same_memory) invert(to);
  (chip_writes ? as_host(to) : to).copy_(chip_reads ? as_host(from) : from);
  if (chip_reads) invert(from);
  if (chip_writes && !same_memory) invert(to);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (to.is_cpu() && non_blocking) {
    ++counts().started_copies;
    started().push_back([from, to] { transfer(from, to); });
  } else {
    if (to.is_cpu()) ++counts().blocking_copies;
    transfer(from, to);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  transfer(from, to);
  return to;
}

Tensor empty_contiguous(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_contiguous);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}
void compute_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Counts before = counts();  // its own copies are none of the program's
  at::native::cpu_fallback(op, stack);
  counts() = before;
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeStream(const c10::Stream&) const override {
    ++counts().waits;
    for (const auto& run : std::exchange(started(), {})) run();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
};

}  // namespace

Counts& counts() {
  static Counts counts;
  return counts;
}
void reset_counts() { counts() = {}; }

mgfl::Tensor to_chip(const mgfl::Tensor& host) {
  static Hooks hooks;
  static const bool registered = [] {
    c10::register_privateuse1_backend("pretended");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  return registered && host.defined() ? host.to(device) : host;
}

mgfl::Tensor to_host(const mgfl::Tensor& chip) { return chip.defined() ? chip.cpu() : chip; }

}  // namespace mgfl_test::chip
