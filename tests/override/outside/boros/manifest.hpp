/// Half of a circle of fallbacks, for the tests.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::vendors {
struct ouro;
struct boros {
  static constexpr std::string_view name = "boros";
  using fallback = ouro;
};
}  // namespace mgfl::vendors
