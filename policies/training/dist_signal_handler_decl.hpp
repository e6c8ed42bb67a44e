/// The original of dist_signal_handler.get_device.
/// Python: megatron/training/dist_signal_handler.py, get_device
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/training.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/communicator_archetype.hpp"

namespace mgfl {

namespace training {

/// The kind of device that is host memory.
c10::DeviceType host_device();

[[noreturn]] void throw_unknown_device();

}  // namespace training

/// The kind of device on which `group` exchanges the flags of its ranks' signals. The original knows groups
/// that say it (`device_type_for_comm()`), and throws UserError for others.
template <>
struct implementation<targets::get_device, vendors::original> {
  using archetype = parallel::communicator_archetype;

  template <parallel::Communicator C>
  static c10::DeviceType call(const C& group) {
    if constexpr (parallel::SaysDeviceTypeForComm<C>)
      return group.device_type_for_comm();
    else
      training::throw_unknown_device();
  }
};

}  // namespace mgfl
