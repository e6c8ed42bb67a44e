#include "vendors/x86/training/initialize.hpp"

#include "vendors/x86/run.h"

namespace mgfl {

std::string implementation<targets::compile_dependencies, vendors::x86>::call() {
  return x86::lacking_instructions(x86::isa_level, x86::machine_runs_simd());
}

}  // namespace mgfl
