// `mgfl overrides`: the table of overridable things and who provides each in this build.
#include <cstdio>

#include "examples/mgfl/commands.hpp"
#include "mgfl/base/error.hpp"
#include "mgfl/override/table.hpp"

namespace mgfl::program {

int run_overrides(const OverridesOptions& options) {
  const auto text = options.json ? override_report_json() : override_report();
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  check_run(written, "the override table cannot be written to standard output; is the disk full?");
  return 0;
}

}  // namespace mgfl::program
