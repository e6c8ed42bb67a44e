#include "mgfl/parallel/staging.hpp"

#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel {

c10::DeviceType device_type_of(const Tensor& tensor) { return tensor.device().type(); }

void run_staged(Tensor& tensor, c10::DeviceType device, function_ref<void(Tensor&)> collective) {
  if (device_type_of(tensor) == device && tensor.is_contiguous()) return collective(tensor);
  Tensor staged = tensor.to(at::Device(device)).contiguous();
  collective(staged);
  tensor.copy_(staged);
}

}  // namespace mgfl::parallel
