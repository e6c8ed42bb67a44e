/// Vendor metax (MetaX): it replaces nothing yet, see README.md; all comes from vendor default.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl {

namespace vendors {
struct metax {
  static constexpr std::string_view name = "metax";
  static constexpr std::string_view device = "cuda";
  using fallback = default_;
};
}  // namespace vendors

template <>
struct manifest<vendors::metax> {
  using overrides = list<>;
};

}  // namespace mgfl
