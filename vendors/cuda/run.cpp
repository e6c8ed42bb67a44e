#include "vendors/cuda/run.hpp"

#include <string>
#include <vector>

#include "mgfl/base/error.hpp"
#include "policies/kernels/main_dtype.hpp"
#include "vendors/cuda/device/place.hpp"

namespace mgfl::cuda {

namespace {

template <class Body>
void for_each_defined(const Operands& operands, Body body) {
  for (const TensorList& tensors : {operands.of_d, operands.of_m, operands.of_ids})
    for (const Tensor& t : tensors)
      if (t.defined()) body(t);
}

bool all_fit(const TensorList& tensors, at::ScalarType dtype) {
  for (const Tensor& t : tensors)
    if (t.defined() && (t.scalar_type() != dtype || !t.is_contiguous())) return false;
  return true;
}

/// "cuda:0 Float, cuda:0 Long not contiguous"
std::string describe(const Operands& operands) {
  std::vector<std::string> tensors;
  for_each_defined(operands, [&](const Tensor& t) {
    tensors.push_back(
        concat(t.device(), " ", c10::toString(t.scalar_type()), t.is_contiguous() ? "" : " not contiguous"));
  });
  return join(tensors);
}

}  // namespace

std::optional<Place> place_of_call(const char* kernel, const Operands& operands) {
  const Tensor* first = nullptr;
  std::optional<Place> place;
  bool several = false;
  for_each_defined(operands, [&](const Tensor& t) {
    if (!first) first = &t;
    several = several || t.device() != first->device();
    if (!place) place = place_of(t);
  });
  if (!place) return std::nullopt;
  if (several)
    throw RunError(concat("kernel ", kernel, ": the tensors of one call lie on several devices (",
                          describe(operands), "); move them to one."));
  const at::ScalarType d = operands.of_d.begin()->get().scalar_type();
  const bool fits = all_fit(operands.of_d, d) && all_fit(operands.of_m, kernels::main_dtype(d)) &&
                    all_fit(operands.of_ids, at::kLong);
  return fits ? place : std::nullopt;
}

void check_on_host(const char* kernel, const Operands& operands) {
  bool on_host = true;
  for_each_defined(operands, [&](const Tensor& t) { on_host = on_host && !place_of(t); });
  if (!on_host)
    throw RunError(concat("kernel ", kernel,
                          ": on a GPU it takes contiguous tensors of one dtype, main gradients and ",
                          "optimizer state in fp32 (fp64 beside fp64), and ids in int64; it was given ",
                          describe(operands), "."));
}

std::string idle_kernels(const std::string& why_no_device, bool libtorch_has_cuda) {
  const char* instead = ", so that ATen's kernels compute on the CPU in place of this build's cuda kernels. ";
  if (!why_no_device.empty())
    return concat("there is no GPU (", why_no_device, ")", instead,
                  "Run where a GPU and its driver are, or build with  ",
                  "-DMGFL_KERNELS=auto  for this machine.");
  if (!libtorch_has_cuda)
    return concat("this program is linked with LibTorch's CPU library and keeps its tensors in host memory",
                  instead, "Build with  -DMGFL_KERNELS=auto  for the fastest kernels there.");
  return {};
}

}  // namespace mgfl::cuda
