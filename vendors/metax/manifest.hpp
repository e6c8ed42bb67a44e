/// Vendor metax (MetaX): what it replaces; the rest comes from vendor default.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/distributed.hpp"

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
  using overrides = list<targets::get_communication_stream>;
};

}  // namespace mgfl
