#include "initialize.hpp"

#include <filesystem>

std::string mgfl::implementation<mgfl::targets::compile_dependencies, mgfl::vendors::acme>::call() {
  return std::filesystem::exists("/dev/acme0") ? "" : "acme: no chip here, its kernels run on the CPU.";
}
