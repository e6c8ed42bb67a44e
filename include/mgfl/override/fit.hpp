/// Whether a vendor's implementation of a target can stand where the original stands.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::detail {

/// V's call() has exactly the original's signature; of a family's, on the family's archetype. True for
/// classes.
template <class T, class V>
consteval bool call_fits() {
  using original = implementation<T, vendors::original>;
  using own = implementation<T, V>;
  if constexpr (IsClass<original>) {
    return true;
  } else if constexpr (IsFamily<original>) {
    using archetype = typename original::archetype;
    if constexpr (requires { &own::template call<archetype>; })
      return std::is_same_v<decltype(&own::template call<archetype>),
                            decltype(&original::template call<archetype>)>;
    else
      return false;
  } else if constexpr (requires { &own::call; }) {
    return std::is_convertible_v<decltype(&own::call), decltype(&original::call)>;
  } else {
    return false;
  }
}

/// V's implementation has a `type`; true for functions and methods.
template <class T, class V>
consteval bool class_is_named() {
  return !IsClass<implementation<T, vendors::original>> || IsClass<implementation<T, V>>;
}

/// V's `type` is a class that inherits from the original; true for functions and methods.
template <class T, class V>
consteval bool class_inherits() {
  using original = implementation<T, vendors::original>;
  if constexpr (!IsClass<original>)
    return true;
  else if constexpr (IsClass<implementation<T, V>>)
    return std::is_base_of_v<typename original::type, typename implementation<T, V>::type>;
  else
    return false;
}

/// What inherits does so publicly and unambiguously.
template <class T, class V>
consteval bool class_converts() {
  if constexpr (IsClass<implementation<T, vendors::original>> && class_inherits<T, V>())
    return std::is_convertible_v<typename implementation<T, V>::type*,
                                 typename implementation<T, vendors::original>::type*>;
  return true;
}

template <class Class, class Signature>
inline constexpr bool builds = false;
template <class Class, class... A>
inline constexpr bool builds<Class, void(A...)> = std::is_constructible_v<Class, A...>;
template <class Class, class... Signatures>
inline constexpr bool builds<Class, list<Signatures...>> = (builds<Class, Signatures> && ...);

/// What inherits accepts the arguments that callers pass to the original's constructors.
template <class T, class V>
consteval bool class_builds() {
  if constexpr (IsClass<implementation<T, vendors::original>> && class_inherits<T, V>())
    return builds<typename implementation<T, V>::type,
                  typename implementation<T, vendors::original>::constructor>;
  return true;
}

}  // namespace mgfl::detail
