/// Decides whether a call runs on a GPU, and unpacks its tensors; private to the bodies in kernels/.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include "mgfl/tensor/lean.hpp"
#include "vendors/cuda/device/launch.hpp"
#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

using TensorList = std::initializer_list<std::reference_wrapper<const Tensor>>;

/// A call's tensors: those of dtype D, those of dtype M, those of int64. Undefined ones fit everywhere.
struct Operands {
  TensorList of_d, of_m, of_ids = {};
};

/// Where the call runs; nothing where its tensors are not CUDA's, or not contiguous and of the dtypes named.
/// Throws RunError where they lie on several devices.
std::optional<Place> place_of_call(const char* kernel, const Operands& operands);

/// For originals that read host memory: throws RunError where a tensor is CUDA's.
void check_on_host(const char* kernel, const Operands& operands);

/// What a user should know where the kernels have nothing to do: the machine offers no device, or LibTorch
/// cannot make tensors there; else empty.
std::string idle_kernels(const std::string& why_no_device, bool libtorch_has_cuda);

/// Start of a tensor's memory, null where it is undefined.
template <class T>
const T* in(const Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <class T>
T* out(Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

/// Launches the operation that make(D{}) gives for the dtype of the first of `of_d`; false where the call is
/// the original's.
template <class Make>
bool run(const char* kernel, const Operands& operands, Make&& make) {
  const auto place = place_of_call(kernel, operands);
  if (!place) return false;
  switch (operands.of_d.begin()->get().scalar_type()) {
    case at::kDouble:
      launch(*place, make(double{}));
      return true;
    case at::kFloat:
      launch(*place, make(float{}));
      return true;
    case at::kBFloat16:
      launch(*place, make(c10::BFloat16{}));
      return true;
    case at::kHalf:
      launch(*place, make(c10::Half{}));
      return true;
    default:
      return false;
  }
}

}  // namespace mgfl::cuda
