#include "policies/training/initialize_decl.hpp"

namespace mgfl {

std::string implementation<targets::compile_dependencies, vendors::original>::call() { return {}; }

}  // namespace mgfl
