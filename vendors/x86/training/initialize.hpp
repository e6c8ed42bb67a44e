/// Looks whether this CPU has the instructions that the x86 kernels were compiled for.
#pragma once

#include "policies/training/initialize_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::compile_dependencies, vendors::x86>
    : overrides<targets::compile_dependencies, vendors::x86> {
  static std::string call();
};

}  // namespace mgfl
