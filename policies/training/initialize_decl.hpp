/// The original of initialize._compile_dependencies.
/// Python: megatron/training/initialize.py, _compile_dependencies
#pragma once

#include <string>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/training.hpp"

namespace mgfl {

/// Makes ready what the kernels of this build need on this machine, when an engine starts; returns what its
/// user should know about that, one sentence or more, or nothing. Megatron compiles helpers here. In mgfl the
/// build has compiled everything, so the original has nothing to do; kernel sets look at the machine.
template <>
struct implementation<targets::compile_dependencies, vendors::original> {
  static std::string call();
};

}  // namespace mgfl
