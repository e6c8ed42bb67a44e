/// A signal to one rank, seen by all ranks between two steps.
/// Python: megatron/training/dist_signal_handler.py
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/training/dist_signal_handler_decl.hpp"

namespace mgfl::training {

static_assert(family_is_checked<targets::get_device>);

/// See implementation<targets::get_device, vendors::original>.
template <parallel::Communicator C>
c10::DeviceType get_device(const C& group) {
  return dispatch_family<targets::get_device, C>(group);
}

/// Remembers SIGTERM and SIGINT for its lifetime instead of ending the process; one at a time in a process.
class DistributedSignalHandler {
 public:
  DistributedSignalHandler();
  ~DistributedSignalHandler();
  DistributedSignalHandler(const DistributedSignalHandler&) = delete;
  DistributedSignalHandler& operator=(const DistributedSignalHandler&) = delete;

  /// True on every rank of `group` as soon as one of them got a signal. Collective.
  template <parallel::Communicator C>
  bool signals_received(C& group) const {
    Tensor flag = own_flag(get_device(group));
    group.all_reduce(flag, ReduceOp::max);
    return is_set(flag);
  }

 private:
  static Tensor own_flag(c10::DeviceType device);
  static bool is_set(const Tensor& flag);

  void (*previous_[2])(int);
};

}  // namespace mgfl::training
