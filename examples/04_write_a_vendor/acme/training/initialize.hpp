/// A function: the same name `call`, the same signature as the original's.
#pragma once

#include "../manifest.hpp"
#include "policies/training/initialize_decl.hpp"  // declares the original

namespace mgfl {

/// Looks for acme's driver when an engine starts.
template <>
struct implementation<targets::compile_dependencies, vendors::acme>
    : overrides<targets::compile_dependencies, vendors::acme> {
  static std::string call();
};

}  // namespace mgfl
