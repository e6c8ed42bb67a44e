/// A line of an engine registry, as a vendor's manifest or a user's program writes it.
#pragma once

#include <string_view>
#include <type_traits>

#include "mgfl/override/target.hpp"

namespace mgfl {

/// In an entry: for every device, for every vendor.
inline constexpr fixed_string any_device = "any";
inline constexpr fixed_string any_vendor = "any";

/// Engine is chosen for this model type and backend, on this device and with this vendor. It is a struct that
/// names the template, so that the template may have constraints and further parameters, and a manifest need
/// not include it:
///   struct my_engine { template <class P, class O, class S> using engine = MyEngine<P, O, S>; };
/// verl: EngineRegistry.register
template <fixed_string ModelType, fixed_string Backend, class Engine, fixed_string Device = any_device,
          fixed_string Vendor = any_vendor>
struct engine_entry {
  static constexpr std::string_view model_type = ModelType.view(), backend = Backend.view(),
                                    device = Device.view(), vendor = Vendor.view();
  using engine_type = Engine;
};

namespace detail {

template <class Engine, class Entries>
inline constexpr bool registers = false;
template <class Engine, class... Entries>
inline constexpr bool registers<Engine, list<Entries...>> =
    (std::is_same_v<typename Entries::engine_type, Engine> || ...);

/// What `using engines = list<engine_entry<...>...>;` in V's manifest says, or nothing.
template <class V>
struct manifest_engines : std::type_identity<list<>> {};
template <class V>
requires requires { typename manifest<V>::engines; }
struct manifest_engines<V> : std::type_identity<typename manifest<V>::engines> {};

}  // namespace detail

/// Base of every engine struct of a vendor: `struct fast : vendor_engine<fast, vendors::acme>`. The build
/// finds the header by these words, and an engine that the manifest does not register is an error, not a
/// no-op.
template <class Engine, class V>
struct vendor_engine {
  static_assert(detail::registers<Engine, typename detail::manifest_engines<V>::type>,
                "mgfl: V has this engine, but vendors/<V>/manifest.hpp does not register it, so nobody could "
                "choose it. Add engine_entry<model type, backend, Engine> to `using engines = list<...>;` in "
                "the manifest.");
};

}  // namespace mgfl
