/// The device of signal flags for groups that do not say one.
/// Python: plugin_flagscale, dist_signal_handler.get_device
#pragma once

#include "policies/training/dist_signal_handler_decl.hpp"
#include "vendors/default/manifest.hpp"

namespace mgfl {

/// The CPU unless the group says another.
template <>
struct implementation<targets::get_device, vendors::default_>
    : overrides<targets::get_device, vendors::default_> {
  template <parallel::Communicator C>
  static c10::DeviceType call(const C& group) {
    return parallel::get_device_type_for_comm(group, training::host_device());
  }
};

}  // namespace mgfl
