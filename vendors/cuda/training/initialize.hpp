/// Looks whether this process can give the cuda kernels anything to do.
#pragma once

#include <string>

#include "policies/training/initialize_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::compile_dependencies, vendors::cuda>
    : overrides<targets::compile_dependencies, vendors::cuda> {
  static std::string call();
};

}  // namespace mgfl
