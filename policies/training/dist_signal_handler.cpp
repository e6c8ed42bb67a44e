#include "policies/training/dist_signal_handler.hpp"

#include <csignal>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::training {

namespace {

constexpr int signals[2] = {SIGTERM, SIGINT};
volatile std::sig_atomic_t signal_received = 0;

}  // namespace

c10::DeviceType host_device() { return at::kCPU; }

void throw_unknown_device() {
  throw UserError(
      "dist_signal_handler.get_device: the group's communicator does not say on which kind of device it "
      "takes "
      "tensors; give it `c10::DeviceType device_type_for_comm() const`, or build with a vendor that "
      "overrides "
      "this target (vendor 'default' takes the CPU).");
}

DistributedSignalHandler::DistributedSignalHandler() {
  signal_received = 0;
  for (int i = 0; i < 2; ++i) previous_[i] = std::signal(signals[i], [](int) { signal_received = 1; });
}

DistributedSignalHandler::~DistributedSignalHandler() {
  for (int i = 0; i < 2; ++i) std::signal(signals[i], previous_[i]);
}

Tensor DistributedSignalHandler::own_flag(c10::DeviceType device) {
  return zeros({1}, at::kInt).fill_(static_cast<int>(signal_received)).to(device);
}

bool DistributedSignalHandler::is_set(const Tensor& flag) { return flag.item<int>() != 0; }

}  // namespace mgfl::training
