/// Vendor tags that every build knows, and the order in which vendors are asked.
#pragma once

#include <string_view>

namespace mgfl {

namespace vendors {

/// The core's own bodies: the end of every chain.
struct original {
  static constexpr std::string_view name = "original";
};

/// What runs when nobody is preferred; its fallback is the kernel set, which the generated header names.
struct default_ {
  static constexpr std::string_view name = "default";
};

}  // namespace vendors

/// The vendor that is asked after V. A vendor's tag says `using fallback = default_;` (or another vendor), a
/// kernel set's `using fallback = original;`.
template <class V>
struct fallback_of {
  using type = typename V::fallback;
};

}  // namespace mgfl
