/// The device of signal flags on Ascend chips.
/// Python: plugin_flagscale, dist_signal_handler.get_device (npu)
#pragma once

#include <c10/core/DeviceType.h>

#include "policies/training/dist_signal_handler_decl.hpp"
#include "vendors/npu/manifest.hpp"

namespace mgfl {

/// The chip, which torch_npu registers as PrivateUse1, unless the group says another (the CPU half of a
/// `cpu:gloo,npu:hccl` backend, for one).
template <>
struct implementation<targets::get_device, vendors::npu> : overrides<targets::get_device, vendors::npu> {
  template <parallel::Communicator C>
  static c10::DeviceType call(const C& group) {
    return parallel::get_device_type_for_comm(group, c10::DeviceType::PrivateUse1);
  }
};

}  // namespace mgfl
