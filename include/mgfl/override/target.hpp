/// Targets (names of overridable things), manifests (what a vendor overrides) and implementations (how).
#pragma once

#include <string_view>
#include <type_traits>

#include "mgfl/override/method_key.hpp"
#include "mgfl/override/vendor.hpp"

namespace mgfl {

namespace detail {
template <class...>
inline constexpr bool always_false = false;
}

/// Base of every target: `struct get_grad_norm_fp32 : target<"mgfl.core.optimizer.clip_grads.get_grad_norm_fp32"> {};`
template <fixed_string Path>
struct target {
  static constexpr auto storage = Path;
  static constexpr std::string_view path = storage.view();
  static constexpr std::string_view key = method_key(storage.view());
};

/// A set of types: membership is one base-class query, and a duplicate does not compile.
template <class... Ts>
struct list : std::type_identity<Ts>... {
  template <class T>
  static constexpr bool has = std::is_base_of_v<std::type_identity<T>, list>;
};

/// The targets that vendor V overrides; each vendor's manifest.hpp specializes it.
template <class V>
struct manifest {
  using overrides = list<>;
};

/// THE customization point. The primary is defined on purpose: a late specialization is then a hard error.
template <class T, class V>
struct implementation {
  static_assert(detail::always_false<T, V>,
                "mgfl: V's manifest lists T, but implementation<T, V> was not visible at first use. "
                "The header that specializes it must lie in the vendor's folder, where the build finds it.");
};

/// Base of every vendor specialization: an override that no manifest lists is an error, not a no-op.
template <class T, class V>
struct overrides {
  static_assert(manifest<V>::overrides::template has<T>,
                "mgfl: implementation<T, V> exists, but vendors/<V>/manifest.hpp does not list T, so it would never run. "
                "Add T to the manifest.");
};

}  // namespace mgfl
