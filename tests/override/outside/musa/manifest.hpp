/// A vendor whose name is taken, for the tests.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::vendors {
struct default_;
struct musa {
  static constexpr std::string_view name = "musa";
  using fallback = default_;
};
}  // namespace mgfl::vendors
