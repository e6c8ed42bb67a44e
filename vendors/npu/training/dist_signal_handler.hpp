/// The device of signal flags on Ascend chips.
/// Python: plugin_flagscale, dist_signal_handler.get_device (npu)
#pragma once

#include "policies/training/dist_signal_handler_decl.hpp"
#include "vendors/npu/manifest.hpp"

namespace mgfl {

namespace npu {

/// The kind of device as which torch_npu registers the chip.
c10::DeviceType chip();

}  // namespace npu

/// The chip, unless the group says another (the CPU half of a `cpu:gloo,npu:hccl` backend, for one).
template <>
struct implementation<targets::get_device, vendors::npu> : overrides<targets::get_device, vendors::npu> {
  template <parallel::Communicator C>
  static c10::DeviceType call(const C& group) {
    return parallel::get_device_type_for_comm(group, npu::chip());
  }
};

}  // namespace mgfl
