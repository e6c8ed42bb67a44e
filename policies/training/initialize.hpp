/// What an engine asks of its kernels when it starts.
/// Python: megatron/training/initialize.py
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/training/initialize_decl.hpp"

namespace mgfl::training {

/// See implementation<targets::compile_dependencies, vendors::original>.
inline std::string _compile_dependencies() { return dispatch<targets::compile_dependencies>(); }

}  // namespace mgfl::training
