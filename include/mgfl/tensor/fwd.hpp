/// Names of LibTorch's tensor and of its kinds of devices, for declarations that need no more than a
/// reference.
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}
namespace c10 {
enum class DeviceType : std::int8_t;
}

namespace mgfl {
using Tensor = at::Tensor;
}
