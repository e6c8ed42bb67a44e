// The override table (Boost.Hana) and, on the way, the proof of the whole build: this unit sees every
// original and every override of the chain, and checks each of them, called or not.
#include "mgfl/override/table.hpp"

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <boost/hana/type.hpp>
#include <boost/hana/unpack.hpp>

#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"
#include "mgfl/override/dispatch.hpp"
#include <mgfl/generated/override_checks.hpp>  // sanctioned here alone

namespace mgfl {

namespace {

namespace hana = boost::hana;

template <class... Ts>
constexpr auto as_hana(list<Ts...>*) {
  return hana::tuple_t<Ts...>;
}
template <class List>
inline constexpr auto hana_of = as_hana(static_cast<List*>(nullptr));

inline constexpr auto override_table = hana_of<all_targets>;
inline constexpr auto known_vendors = hana_of<vendors::known>;
inline constexpr auto known_kernel_sets = hana_of<vendors::known_kernel_sets>;

/// T's body in V against the original: the checks that a call would make.
template <class T, class V>
consteval bool checked() {
  if constexpr (kind_of<T> == target_kind::class_)
    return sizeof(typename detail::class_body<T, V>::type) > 0;
  else if constexpr (is_family<T>)
    return sizeof(detail::template_body<T, V>) > 0;
  else
    return detail::function_body<T, V>::call != nullptr;
}

template <class T, class V>
consteval bool checked_if_listed() {
  if constexpr (manifest<V>::overrides::template has<T>) return checked<T, V>();
  return true;
}

// A vendor further down the chain is checked too, although another one hides it.
template <class T, class... Vs>
consteval bool checked_in_chain(list<Vs...>*) {
  return checked<T, vendors::original>() && (checked_if_listed<T, Vs>() && ...);
}

static_assert(hana::unpack(override_table, [](auto... t) {
  return (checked_in_chain<typename decltype(t)::type>(static_cast<vendors::chain*>(nullptr)) && ...);
}));

template <class T, class Vendors>
void add_offers(std::vector<std::string_view>& offers, const Vendors& candidates) {
  hana::for_each(candidates, [&](auto v) {
    using V = typename decltype(v)::type;
    if (manifest<V>::overrides::template has<T> && !std::is_same_v<V, active_vendor<T>>)
      offers.push_back(V::name);
  });
}

template <class T>
override_row row() {
  override_row result{T::path, T::key, kind_of<T>, active_vendor<T>::name, {}};
  add_offers<T>(result.also, known_vendors);
  add_offers<T>(result.also, known_kernel_sets);
  return result;
}

template <class List>
std::vector<std::string_view> names(const List& members) {
  return hana::unpack(members,
                      [](auto... v) { return std::vector<std::string_view>{decltype(v)::type::name...}; });
}

std::vector<std::string_view> kernel_set_names() {
  auto result = names(known_kernel_sets);
  result.insert(result.begin(), "aten");
  return result;
}

constexpr std::string_view kernel_set_name =
    std::is_same_v<vendors::kernel_set, vendors::original> ? "aten" : vendors::kernel_set::name;

std::string json_list(
    const std::vector<std::string_view>& texts) {  // names are identifiers: nothing to escape
  return texts.empty() ? "[]" : concat("[\"", join(texts, "\", \""), "\"]");
}

}  // namespace

std::vector<override_row> override_rows() {
  return hana::unpack(override_table, [](auto... t) {
    return std::vector<override_row>{row<typename decltype(t)::type>()...};
  });
}

namespace {

template <class V>
void add_manifest(std::string& text) {
  text += concat("\n", V::name, ":");
  hana::for_each(hana_of<typename manifest<V>::overrides>,
                 [&](auto t) { text += concat(" ", decltype(t)::type::path); });
}

}  // namespace

std::string override_summary() {
  const auto rows = override_rows();
  std::string counts;
  std::ptrdiff_t overridden = 0;
  hana::for_each(hana_of<vendors::chain>, [&](auto v) {
    constexpr auto name = decltype(v)::type::name;
    const auto count = std::ranges::count(rows, name, &override_row::vendor);
    overridden += count;
    if (count > 0) counts += concat(counts.empty() ? " (" : ", ", name, " ", count);
  });
  if (!counts.empty()) counts += ")";
  return concat("vendor '", vendors::preferred::name, "', kernels '", kernel_set_name, "': ", overridden,
                " of ", rows.size(), " targets overridden", counts);
}

std::uint64_t override_hash() {
  std::string text;
  for (const auto& r : override_rows()) text += concat(r.path, " ", r.vendor, "\n");
  hana::for_each(hana_of<vendors::chain>, [&](auto v) { add_manifest<typename decltype(v)::type>(text); });
  return fnv1a(text);
}

std::string override_report() {
  const auto rows = override_rows();
  std::size_t key_width = 0, vendor_width = 0;
  for (const auto& r : rows) {
    key_width = std::max(key_width, r.key.size());
    vendor_width = std::max(vendor_width, r.vendor.size());
  }
  const auto padded = [](std::string_view text, std::size_t width) {
    return std::string(text) + std::string(width - text.size(), ' ');
  };
  std::string report =
      concat("mgfl: built for vendor '", vendors::preferred::name, "' (known: ", join(names(known_vendors)),
             "), kernels '", kernel_set_name, "' (known: ", join(kernel_set_names()), ")\n");
  for (const auto& r : rows) {
    std::string line = concat("  ", padded(r.key, key_width), "  ", padded(to_string(r.kind), 8), "  ",
                              padded(r.vendor, vendor_width));
    if (!r.also.empty()) line += concat("  (also: ", join(r.also), ")");
    line.erase(line.find_last_not_of(' ') + 1);
    report += line + "\n";
  }
  return report;
}

std::string override_report_json() {
  std::string targets;
  for (const auto& r : override_rows())
    targets += concat(targets.empty() ? "" : ",", "\n  {\"path\": \"", r.path, "\", \"key\": \"", r.key,
                      "\", \"kind\": \"", to_string(r.kind), "\", \"vendor\": \"", r.vendor,
                      "\", \"also\": ", json_list(r.also), "}");
  return concat("{\"vendor\": \"", vendors::preferred::name,
                "\", \"known_vendors\": ", json_list(names(known_vendors)), ", \"kernels\": \"",
                kernel_set_name, "\", \"known_kernels\": ", json_list(kernel_set_names()),
                ",\n \"targets\": [", targets, "]}\n");
}

}  // namespace mgfl
