/// Vendor txda (Tsingmicro): it replaces nothing yet, see README.md; all comes from vendor default.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl {

namespace vendors {
struct txda {
  static constexpr std::string_view name = "txda";
  static constexpr std::string_view device = "txda";
  using fallback = default_;
};
}  // namespace vendors

template <>
struct manifest<vendors::txda> {
  using overrides = list<>;
};

}  // namespace mgfl
