/// Picks the implementation of a target for the vendor of this build; whoever includes this has seen every
/// override.
#pragma once

#include "mgfl/override/fit.hpp"
#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/all.hpp"

#if !__has_include(<mgfl/generated/selected_vendor.hpp>)
#error \
    "mgfl is not configured: link the CMake target mgfl::mgfl, which brings mgfl/generated/selected_vendor.hpp"
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

template <class T, class V>
struct vendor_after {
  static_assert(manifest<V>::overrides::template has<T>,
                "mgfl: only V's own override of T may ask who comes after V, but V's manifest does not list "
                "T; a caller uses dispatch<T>.");
  using type = typename resolve<T, typename fallback_of<V>::type>::type;
};

/// The vendors from V to the last before the original, as the manifests' `fallback`s say.
template <class V, class... Before>
struct walk : walk<typename fallback_of<V>::type, Before..., V> {};
template <class... Before>
struct walk<vendors::original, Before...> : std::type_identity<list<Before...>> {};
static_assert(std::is_same_v<typename walk<vendors::preferred>::type, vendors::chain>,
              "mgfl: CMake read another `using fallback = ...;` in a manifest than the compiler does; write "
              "it on one line, as "
              "the first of its file.");

/// Each manifest lists targets that the core knows.
template <class V, class T>
struct manifest_entry {
  static_assert(
      all_targets::has<T>,
      "mgfl: V's manifest lists T, which is no target; include/mgfl/override/targets/ names every target.");
};
template <class V, class Overrides>
struct manifest_entries;
template <class V, class... Ts>
struct manifest_entries<V, list<Ts...>> : manifest_entry<V, Ts>... {};
template <class Vendors>
struct manifests;
template <class... Vs>
struct manifests<list<Vs...>> : manifest_entries<Vs, typename manifest<Vs>::overrides>... {};
static_assert(sizeof(manifests<vendors::known>) > 0 && sizeof(manifests<vendors::known_kernel_sets>) > 0);

/// Whether a method's call takes `self` first; true for functions.
template <class Original, class Signature>
inline constexpr bool takes_self = true;
template <IsMethod Original, class R, class... A>
inline constexpr bool takes_self<Original, R (*)(A...)> = false;
template <IsMethod Original, class R, class Self, class... A>
inline constexpr bool takes_self<Original, R (*)(Self, A...)> =
    std::is_same_v<Self, typename Original::self&>;

template <class T, class V = active_vendor<T>>
struct function_body {
  using original = implementation<T, vendors::original>;
  static_assert(!IsClass<original>,
                "mgfl: this target is a class; use override_class_t<T> instead of dispatch<T>.");
  static_assert(!IsFamily<original>,
                "mgfl: this target is a family; use dispatch_family<T, C> instead of dispatch<T>.");
  using signature = decltype(&original::call);
  static_assert(takes_self<original, signature>,
                "mgfl: a method's call() takes its class first: `call(Class& self, ...)`.");
  static_assert(call_fits<T, V>(), "mgfl: an override's call() must have exactly the original's signature.");
  static constexpr signature call = &implementation<T, V>::call;
};

/// The check that makes a late, missing or mistyped override of a family an error, see `family_is_checked`.
template <class T, class V = active_vendor<T>>
struct template_body {
  using original = implementation<T, vendors::original>;
  static_assert(IsFamily<original>,
                "mgfl: this target is no family; use dispatch<T> or override_class_t<T>.");
  using archetype = typename original::archetype;
  static_assert(takes_self<original, decltype(&original::template call<archetype>)>,
                "mgfl: a method's call() takes its class first: `call(Self& self, ...)`.");
  static_assert(call_fits<T, V>(),
                "mgfl: an override's call() must have exactly the original's signature (compared on the "
                "family's archetype).");
};

template <class T, class C, class V = active_vendor<T>>
struct family_body : template_body<T, V> {
  using signature = decltype(&implementation<T, vendors::original>::template call<C>);
  static_assert(std::is_same_v<decltype(&implementation<T, V>::template call<C>), signature>,
                "mgfl: an override's call() must have exactly the original's signature.");
  static constexpr signature call = &implementation<T, V>::template call<C>;
};

template <class T, class V = active_vendor<T>>
struct class_body {
  static_assert(IsClass<implementation<T, vendors::original>>,
                "mgfl: this target is no class; use dispatch<T> instead of override_class_t<T>.");
  static_assert(IsClass<implementation<T, V>>,
                "mgfl: an override of a class says `using type = YourClass;` in its implementation<T, V>.");
  static_assert(class_inherits<T, V>(), "mgfl: a class override must inherit from the original class.");
  static_assert(class_converts<T, V>(),
                "mgfl: a class override must inherit publicly and unambiguously from the original class.");
  static_assert(class_builds<T, V>(),
                "mgfl: a class override must accept the constructor arguments that callers already pass.");
  using type = typename implementation<T, V>::type;
};

/// Defined only in libmgfl, for the vendor, kernel set and manifests it was built with: a mixed program does
/// not link.
template <class Preferred, class KernelSet, class... Overrides>
void program_and_libmgfl_were_built_for_different_vendors();

template <class Chain>
struct link_check;
template <class... Vs>
struct link_check<list<Vs...>> {
  static constexpr auto build =
      &program_and_libmgfl_were_built_for_different_vendors<vendors::preferred, vendors::kernel_set,
                                                            typename manifest<Vs>::overrides...>;
  static inline void (*const volatile witness)() = build;
};
template struct link_check<vendors::chain>;

}  // namespace detail

/// The active body of a function or method target: a constant, no table, no cost.
template <class T>
inline constexpr auto dispatch = detail::function_body<T>::call;

/// The active body of a family target for one C (a communicator, or the class of `self`): a constant as well.
/// Wherever this is called from a template, `static_assert(family_is_checked<T>);` stands beside it at
/// namespace scope.
template <class T, class C>
inline constexpr auto dispatch_family = detail::family_body<T, C>::call;

/// Proves a family's active body where it is written: without it, compilers accept an override that comes too
/// late.
template <class T>
inline constexpr bool family_is_checked = sizeof(detail::template_body<T>) > 0;

/// Whose body of T would run if V had none: the next in V's chain, whichever vendor this build prefers.
template <class T, class V>
using next_vendor = typename detail::vendor_after<T, V>::type;

/// The body of the next vendor in V's chain, for the .cpp of V's override: what V does not cover (e.g.
/// tensors in host memory, for a chip) is handed on here, so that the machine's kernel set keeps its turn.
template <class T, class V>
inline constexpr auto dispatch_next = detail::function_body<T, next_vendor<T, V>>::call;

/// The active class of a class target.
template <class T>
using override_class_t = typename detail::class_body<T>::type;

}  // namespace mgfl
