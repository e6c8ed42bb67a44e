/// Half of a circle of fallbacks, for the tests.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::vendors {
struct boros;
struct ouro {
  static constexpr std::string_view name = "ouro";
  using fallback = boros;
};
}  // namespace mgfl::vendors
