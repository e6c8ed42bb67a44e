/// A device of a kind of its own, as a vendor's chip is one: LibTorch refuses to read its tensors as the
/// CPU's. Its memory is the host's, so that every machine has it.
#pragma once

#include <c10/core/DeviceType.h>

#include "mgfl/tensor/lean.hpp"

namespace mgfl_test {

inline constexpr c10::DeviceType chip = c10::DeviceType::PrivateUse1;

inline mgfl::Tensor to_chip(const mgfl::Tensor& tensor) { return tensor.to(at::Device(chip)); }

}  // namespace mgfl_test
