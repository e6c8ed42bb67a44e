/// Picks the implementation of a target for the vendor of this build; whoever includes this has seen every override.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/all.hpp"

#if !__has_include(<mgfl/generated/selected_vendor.hpp>)
#error "mgfl is not configured: link the CMake target mgfl::mgfl, which brings mgfl/generated/selected_vendor.hpp"
#endif
#include <mgfl/generated/selected_vendor.hpp>  // the one sanctioned upward include

namespace mgfl {

/// Walks preferred -> fallbacks -> default -> kernel set -> original over manifests only.
template <class T, class V = vendors::preferred>
struct resolve : std::conditional_t<manifest<V>::overrides::template has<T>, std::type_identity<V>,
                                    resolve<T, typename fallback_of<V>::type>> {};
template <class T>
struct resolve<T, vendors::original> : std::type_identity<vendors::original> {};

template <class T>
using active_vendor = typename resolve<T>::type;

namespace detail {

template <class T, class V = active_vendor<T>>
struct function_body {
  using signature = decltype(&implementation<T, vendors::original>::call);
  static_assert(std::is_convertible_v<decltype(&implementation<T, V>::call), signature>,
                "mgfl: an override's call() must have exactly the original's signature.");
  static constexpr signature call = &implementation<T, V>::call;
};

template <class C, class Signature>
inline constexpr bool builds = false;
template <class C, class... A>
inline constexpr bool builds<C, void(A...)> = std::is_constructible_v<C, A...>;

template <class T, class V = active_vendor<T>>
struct class_body {
  using type = typename implementation<T, V>::type;
  using original = typename implementation<T, vendors::original>::type;
  static_assert(std::is_base_of_v<original, type>, "mgfl: a class override must inherit from the original class.");
  static_assert(std::is_convertible_v<type*, original*>,
                "mgfl: a class override must inherit publicly and unambiguously from the original class.");
  static_assert(builds<type, typename implementation<T, vendors::original>::constructor>,
                "mgfl: a class override must accept the constructor arguments that callers already pass.");
};

}  // namespace detail

/// The active body of a function or method target: a constant, no table, no cost.
template <class T>
inline constexpr auto dispatch = detail::function_body<T>::call;

/// The active class of a class target.
template <class T>
using override_class_t = typename detail::class_body<T>::type;

}  // namespace mgfl
