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

/// Base of every target: `struct get_grad_norm_fp32 :
/// target<"mgfl.core.optimizer.clip_grads.get_grad_norm_fp32"> {};`
template <fixed_string Path>
struct target {
  static constexpr auto storage = Path;
  static constexpr std::string_view path = storage.view();
  static_assert(fault_of(path) != path_fault::one_segment,
                "mgfl: a target path needs at least two dotted segments, as in \"clip_grads.norm\".");
  static_assert(fault_of(path) != path_fault::empty_segment,
                "mgfl: empty segment in a target path; write one dot between two names, none at the ends.");
  static_assert(fault_of(path) != path_fault::other_character,
                "mgfl: a target path is made of letters, digits, _ and dots.");
  static constexpr std::string_view key = method_key(storage.view());
};

namespace detail {
template <class T>
struct mgfl_list_names_each_type_once {};  // compilers print this name where a list names T twice
}  // namespace detail

/// A set of types: membership is one base-class query, and a duplicate does not compile.
template <class... Ts>
struct list : detail::mgfl_list_names_each_type_once<Ts>... {
  static constexpr auto size = sizeof...(Ts);
  template <class T>
  static constexpr bool has = std::is_base_of_v<detail::mgfl_list_names_each_type_once<T>, list>;
};

/// The targets that vendor V overrides; each vendor's manifest.hpp specializes it.
template <class V>
struct manifest {
  using overrides = list<>;
};

/// THE customization point. The primary is defined on purpose: a late specialization is then a hard error.
///
/// The original's specialization says what kind of thing T is:
/// - function: `static R call(A...);`
/// - method: the same, and `using self = Class;`; call's first parameter is `Class& self`
/// - class: `using type = Class;` and `using constructor = void(A...);` (or a list<> of such signatures)
/// - family, a function or method whose call is a template over one type, e.g. the communicator:
///   `template <class C> static R call(A...);` and `using archetype = X;` where X stands for every C
template <class T, class V>
struct implementation {
  static_assert(
      detail::always_false<T, V>,
      "mgfl: implementation<T, V> was not visible at first use, although V's manifest lists T "
      "(or V is the original). A vendor's specialization belongs into a .hpp of the vendor's folder, "
      "where the build looks for the words `struct implementation<`; an original's into a *_decl.hpp under "
      "policies/.");
};

/// Base of every vendor specialization: an override that no manifest lists is an error, not a no-op.
template <class T, class V>
struct overrides {
  static_assert(manifest<V>::overrides::template has<T>,
                "mgfl: implementation<T, V> exists, but vendors/<V>/manifest.hpp does not list T, so it "
                "would never run. "
                "Add T to the manifest.");
};

/// What a target names.
enum class target_kind { function, method, class_ };

constexpr std::string_view to_string(target_kind kind) {
  return kind == target_kind::class_ ? "class" : kind == target_kind::method ? "method" : "function";
}

namespace detail {

template <class Original>
concept IsClass = requires {
  typename Original::type;
};
template <class Original>
concept IsMethod = requires {
  typename Original::self;
};
template <class Original>
concept IsFamily = requires {
  typename Original::archetype;
};

}  // namespace detail

/// Read from the original's implementation, not from the spelling of its name.
template <class T>
inline constexpr target_kind kind_of =
    detail::IsClass<implementation<T, vendors::original>>    ? target_kind::class_
    : detail::IsMethod<implementation<T, vendors::original>> ? target_kind::method
                                                             : target_kind::function;

/// Whether a target's call is a template over one type.
template <class T>
inline constexpr bool is_family = detail::IsFamily<implementation<T, vendors::original>>;

}  // namespace mgfl
