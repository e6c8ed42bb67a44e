/// Lines for people, on stderr: warnings come from one rank only.
#pragma once

#include <cstdio>
#include <string_view>

namespace mgfl {

/// Prints "mgfl: warning: ..." on rank 0 and nothing elsewhere.
inline void log_warning(int rank, std::string_view text) {
  if (rank == 0) std::fprintf(stderr, "mgfl: warning: %.*s\n", static_cast<int>(text.size()), text.data());
}

}  // namespace mgfl
