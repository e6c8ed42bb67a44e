/// A kernel set outside the tree, for the tests.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::vendors {
struct original;
struct abacus {
  static constexpr std::string_view name = "abacus";
  using fallback = original;
};
}  // namespace mgfl::vendors
