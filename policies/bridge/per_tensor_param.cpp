#include "policies/bridge/per_tensor_param.hpp"

namespace mgfl::bridge {

const NamedHfTensor& PerTensorParam::element(std::size_t index) {
  if (!element_ || made_ != index) {
    element_.reset();
    const PlannedTensor& part = plan_[index];
    if (gathered_ != part.param) {
      whole_.gather(part.param);
      gathered_ = part.param;
    }
    // Converted before rows are copied together: at most one of the two copies has the wider dtype.
    const Tensor values = part.view.to(dtype_of(part));
    element_ = NamedHfTensor{part.name, values.reshape(part.shape).contiguous()};
    made_ = index;
  }
  return *element_;
}

std::vector<checkpoint::TensorSpec> PerTensorParam::specs() const {
  std::vector<checkpoint::TensorSpec> specs;
  for (const PlannedTensor& part : plan_) specs.push_back({part.name, dtype_of(part), part.shape});
  return specs;
}

}  // namespace mgfl::bridge
