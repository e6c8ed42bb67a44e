/// A vendor whose folder is no identifier, for the tests.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::vendors {
struct default_;
struct bad_name {
  static constexpr std::string_view name = "bad_name";
  using fallback = default_;
};
}  // namespace mgfl::vendors
