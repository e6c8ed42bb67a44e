#include "vendors/npu/training/dist_signal_handler.hpp"

#include "mgfl/tensor/lean.hpp"

namespace mgfl::npu {

c10::DeviceType chip() { return at::kPrivateUse1; }

}  // namespace mgfl::npu
