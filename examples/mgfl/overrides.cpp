// `mgfl overrides`: the table of overridable things and who provides each in this build.
#include <cstdio>

#include "examples/mgfl/commands.hpp"
#include "mgfl/override/table.hpp"

namespace mgfl::program {

int run_overrides(const OverridesOptions& options) {
  const auto text = options.json ? override_report_json() : override_report();
  std::printf("%s%s", text.c_str(), text.empty() || text.back() != '\n' ? "\n" : "");
  return 0;
}

}  // namespace mgfl::program
