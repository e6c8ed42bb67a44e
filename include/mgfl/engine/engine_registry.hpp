/// Chooses an engine by name while compiling: `engine_for<"language_model", "megatron">::engine<P, O, S>`.
/// verl: EngineRegistry
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mgfl/engine/engine_entry.hpp"
#include "mgfl/override/dispatch.hpp"

namespace mgfl {

namespace detail {

template <std::size_t Length>
consteval fixed_string<Length + 1> fixed(std::string_view text) {
  char letters[Length + 1]{};
  for (std::size_t i = 0; i < Length; ++i) letters[i] = text[i];
  return letters;
}

template <class V>
consteval std::string_view device_of() {
  if constexpr (requires { V::device; })
    return V::device;
  else
    return {};
}

template <class... Vs>
consteval std::string_view device_of_chain(list<Vs...>*) {
  for (const std::string_view device : {device_of<Vs>()..., std::string_view("cpu")})
    if (!device.empty()) return device;
  return {};
}

inline constexpr std::string_view device_name = device_of_chain(static_cast<vendors::chain*>(nullptr));

}  // namespace detail

/// This build's device: the `device` of the first vendor or kernel set of its chain whose tag has one, or
/// "cpu".
inline constexpr auto build_device = detail::fixed<detail::device_name.size()>(detail::device_name);

/// This build's preferred vendor.
inline constexpr auto build_vendor = detail::fixed<vendors::preferred::name.size()>(vendors::preferred::name);

namespace detail {

/// An entry as plain data.
struct engine_row {
  std::string_view model_type, backend, device, vendor;
  constexpr bool operator==(const engine_row&) const = default;
};
template <class... Entries>
inline constexpr std::array<engine_row, sizeof...(Entries)> engine_rows{
    {{Entries::model_type, Entries::backend, Entries::device, Entries::vendor}...}};

/// Instantiated with the two culprits, so that the compiler prints them.
template <class A, class B>
struct two_engines {
  static_assert(always_false<A, B>,
                "mgfl: two engines are registered under one model type, backend, device and vendor; keep "
                "one, or give one of them a device or a vendor.");
};

/// The first two entries with one key, by index; {0, 0} when all differ.
template <std::size_t N>
consteval index_pair first_clash(const std::array<engine_row, N>& rows) {
  for (std::size_t i = 0; i < N; ++i)
    for (std::size_t j = i + 1; j < N; ++j)
      if (rows[i] == rows[j]) return {i, j};
  return {};
}

/// Complete where all entries have keys of their own.
template <index_pair Clash, class... Entries>
struct distinct_entries : two_engines<typename element<Clash.first, Entries...>::type,
                                      typename element<Clash.second, Entries...>::type> {};
template <class... Entries>
struct distinct_entries<index_pair{0, 0}, Entries...> {};

/// What is wrong with a question to a registry.
enum class engine_fault { none, key, device, vendor, combination };

struct engine_answer {
  std::size_t index = 0;
  engine_fault fault = engine_fault::none;
};

/// The place of a vendor in the build's chain, or `after_chain`.
template <class... Vs>
constexpr std::size_t place_in_chain(std::string_view vendor, list<Vs...>*) {
  std::size_t place = 0;
  for (const std::string_view name : {Vs::name...}) {
    if (name == vendor) break;
    ++place;
  }
  return place;
}
inline constexpr vendors::chain* build_chain = nullptr;
inline constexpr std::size_t after_chain = vendors::chain::size;

/// The first entry in this order, which is verl's for each vendor: the vendor's for the device, the vendor's
/// for any device, the same of the vendors after it in the build's chain, and of any vendor.
template <class... Entries>
consteval engine_answer find_engine(const engine_row& asked) {
  constexpr auto& rows = engine_rows<Entries...>;
  const std::size_t own_place = place_in_chain(asked.vendor, build_chain);
  bool key = false, device = asked.device == device_name, vendor = own_place < after_chain;
  std::size_t least = 2 * after_chain + 2, found = rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    device = device || row.device == asked.device;
    vendor = vendor || row.vendor == asked.vendor;
    if (row.model_type != asked.model_type || row.backend != asked.backend) continue;
    key = true;
    const bool on_any_device = row.device == any_device.view();
    if (!on_any_device && row.device != asked.device) continue;
    std::size_t steps = after_chain;  // down the chain
    if (row.vendor == asked.vendor) {
      steps = 0;
    } else if (row.vendor != any_vendor.view()) {
      const std::size_t place = place_in_chain(row.vendor, build_chain);
      if (place == after_chain || place < own_place) continue;
      steps = place - own_place;
    }
    if (2 * steps + on_any_device >= least) continue;
    least = 2 * steps + on_any_device;
    found = i;
  }
  if (!key) return {0, engine_fault::key};
  if (!device) return {0, engine_fault::device};
  if (!vendor) return {0, engine_fault::vendor};
  if (found == rows.size()) return {0, engine_fault::combination};
  return {found, engine_fault::none};
}

// What the compiler prints beside a sentence. Clang shows a fixed_string as numbers, but letters as letters.
#ifdef __clang__
template <char... Letters>
struct text {};
template <fixed_string Text>
consteval auto spelled() {
  return []<std::size_t... I>(std::index_sequence<I...>) { return text<Text.text[I]...>{}; }
  (std::make_index_sequence<Text.view().size()>{});
}
#else
template <fixed_string Text>
struct text {};
template <fixed_string Text>
consteval auto spelled() {
  return text<Text>{};
}
#endif
template <class... Texts>
struct engine_key {};
template <fixed_string... Texts>
using key_of = engine_key<decltype(spelled<Texts>())...>;

template <class Entry>
struct spelled_entry;
template <fixed_string M, fixed_string B, class Engine, fixed_string D, fixed_string V>
struct spelled_entry<engine_entry<M, B, Engine, D, V>> : std::type_identity<key_of<M, B, D, V>> {};

/// Instantiated where there is a fault, with what was asked for and all that the registry holds.
template <engine_fault Fault, class Asked, class... Registered>
struct engine_is_registered {
  static_assert(
      Fault != engine_fault::key,
      "mgfl: no engine is registered under this model type and backend. mgfl's own are "
      "\"language_model\", \"megatron\" and \"value_model\", \"megatron\"; beside this sentence the "
      "compiler prints the key that was asked for, and every one of this registry.");
  static_assert(
      Fault != engine_fault::device,
      "mgfl: no engine is registered for this device, and it is not the device of this build. Leave "
      "it out for the build's own; beside this sentence the compiler prints every key of this "
      "registry.");
  static_assert(Fault != engine_fault::vendor,
                "mgfl: no engine is registered for this vendor, and it is not in the chain of this build. "
                "Leave it out for the preferred one, or build with -DMG_FL_PREFER=...; beside this sentence "
                "the compiler prints every key of this registry.");
  static_assert(Fault != engine_fault::combination,
                "mgfl: an engine is registered under this model type and backend, but none for this device "
                "and vendor together; beside this sentence the compiler prints every key of this registry.");
};

template <class Engine>
inline constexpr bool is_seen = requires {
  sizeof(Engine);
};

/// Stands where there is no engine at all.
struct no_engine {
  template <class...>
  using engine = no_engine;
};

template <class... Entries>
struct first_seen : std::type_identity<no_engine> {};
template <class Entry, class... Rest>
struct first_seen<Entry, Rest...>
    : std::conditional_t<is_seen<typename Entry::engine_type>,
                         std::type_identity<typename Entry::engine_type>, first_seen<Rest...>> {};

/// Instantiated with an entry and whether its engine struct is defined.
template <class Entry, bool Seen>
struct engine_is_defined {
  static_assert(
      Seen,
      "mgfl: this engine is registered, but its struct was not defined before its first use. Include "
      "policies/engine/registered_engines.hpp, which defines mgfl's own and those of this build's "
      "vendors; for one of your own registry include its header. In a vendor's folder the build "
      "looks for `vendor_engine<` in a .hpp.");
};

// Sentences stand in classes of their own, and after a fault the registry's first engine stands in, so that
// one mistake gives one sentence: Clang drops whatever names a member of a class whose assertion failed.
template <engine_fault Fault, std::size_t I, class Asked, class... Entries>
struct engine_choice : first_seen<Entries...> {
  static_assert(sizeof(engine_is_registered<Fault, Asked, typename spelled_entry<Entries>::type...>) > 0);
};
template <std::size_t I, class Asked, class... Entries>
struct engine_choice<engine_fault::none, I, Asked, Entries...> {
  using entry = typename element<I, Entries...>::type;
  static constexpr bool seen = is_seen<typename entry::engine_type>;
  static_assert(sizeof(engine_is_defined<entry, seen>) > 0);
  using type = typename std::conditional_t<seen, std::type_identity<typename entry::engine_type>,
                                           first_seen<Entries...>>::type;
};

template <class Registry, fixed_string M, fixed_string B, fixed_string D, fixed_string V>
struct engine_lookup;

}  // namespace detail

/// The engines that one can choose from, as engine_entry<...>s; all of them are checked once.
template <class... Entries>
struct EngineRegistry {
  static_assert(
      sizeof(detail::distinct_entries<detail::first_clash(detail::engine_rows<Entries...>), Entries...>) > 0);

  /// These and more: `registered_engines::with<engine_entry<"reward_model", "mine", my_engine>>`.
  template <class... More>
  using with = EngineRegistry<Entries..., More...>;

  /// A struct whose `engine<P, O, S>` is the engine's class. A vendor's comes before one for any vendor, the
  /// device's before one for any device; what nobody registered does not compile.
  template <fixed_string ModelType, fixed_string Backend, fixed_string Device = build_device,
            fixed_string Vendor = build_vendor>
  using engine_for = typename detail::engine_lookup<EngineRegistry, ModelType, Backend, Device, Vendor>::type;
};

namespace detail {

template <class... Entries, fixed_string M, fixed_string B, fixed_string D, fixed_string V>
struct engine_lookup<EngineRegistry<Entries...>, M, B, D, V> {
  static_assert(sizeof(EngineRegistry<Entries...>) > 0);
  static constexpr engine_answer answer = find_engine<Entries...>({M.view(), B.view(), D.view(), V.view()});
  using type = typename engine_choice<answer.fault, answer.index, key_of<M, B, D, V>, Entries...>::type;
};

/// Instantiated with a vendor and what its manifest lists.
template <class V, class Entry>
struct entry_fits_manifest {
  static_assert(
      always_false<V, Entry>,
      "mgfl: `engines` of a manifest is a list of engine_entry<model type, backend, Engine>, with a "
      "device or without.");
};
template <class V, fixed_string M, fixed_string B, class Engine, fixed_string D, fixed_string Owner>
struct entry_fits_manifest<V, engine_entry<M, B, Engine, D, Owner>> {
  static_assert(Owner.view() == any_vendor.view() || Owner.view() == V::name,
                "mgfl: a manifest registers engines of its own vendor only; leave the vendor out of its "
                "engine_entry.");
};

/// An entry of V's manifest is V's.
template <class V, class Entry>
struct entry_of_manifest : std::type_identity<engine_entry<"", "", no_engine>> {
  static_assert(sizeof(entry_fits_manifest<V, Entry>) > 0);
};
template <class V, fixed_string M, fixed_string B, class Engine, fixed_string D, fixed_string Owner>
struct entry_of_manifest<V, engine_entry<M, B, Engine, D, Owner>>
    : std::type_identity<engine_entry<M, B, Engine, D, fixed<V::name.size()>(V::name)>> {
  static_assert(sizeof(entry_fits_manifest<V, engine_entry<M, B, Engine, D, Owner>>) > 0);
};

template <class V, class Entries>
struct entries_of_manifest;
template <class V, class... Entries>
struct entries_of_manifest<V, list<Entries...>>
    : std::type_identity<list<typename entry_of_manifest<V, Entries>::type...>> {};

template <class Chain>
struct entries_of_chain;
template <class... Vs>
struct entries_of_chain<list<Vs...>>
    : concatenate<list<>, typename entries_of_manifest<Vs, typename manifest_engines<Vs>::type>::type...> {};

/// Whether every entry's struct is defined; says which one is not.
template <class Entries>
inline constexpr bool all_seen = false;
template <class... Entries>
inline constexpr bool all_seen<list<Entries...>> =
    ((sizeof(engine_is_defined<Entries, is_seen<typename Entries::engine_type>>) > 0) && ...);

template <class Entries>
struct registry_of;
template <class... Entries>
struct registry_of<list<Entries...>> : std::type_identity<EngineRegistry<Entries...>> {};

}  // namespace detail

/// mgfl's own engines; policies/engine/registered_engines.hpp defines them.
namespace engines {
struct language_model_megatron;
struct value_model_megatron;
}  // namespace engines

using core_engines = list<engine_entry<"language_model", "megatron", engines::language_model_megatron>,
                          engine_entry<"value_model", "megatron", engines::value_model_megatron>>;

/// The engines of the vendors in this build's chain, as their manifests list them.
using vendor_engines = typename detail::entries_of_chain<vendors::chain>::type;

/// All engines of this build.
using registered_engines =
    typename detail::registry_of<typename detail::concatenate<core_engines, vendor_engines>::type>::type;

/// Names an engine of this build, see EngineRegistry::engine_for:
///   using Actor = mgfl::engine_for<"language_model", "megatron">::engine<P, O, S>;
template <fixed_string ModelType, fixed_string Backend, fixed_string Device = build_device,
          fixed_string Vendor = build_vendor>
using engine_for = registered_engines::engine_for<ModelType, Backend, Device, Vendor>;

}  // namespace mgfl
