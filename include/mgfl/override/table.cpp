// The override table (Boost.Hana) and, on the way, the proof of the whole build: this unit sees every
// original and every override of the chain, and checks each of them, called or not.
#include "mgfl/override/table.hpp"

#include <algorithm>
#include <array>
#include <boost/hana/basic_tuple.hpp>
#include <boost/hana/type.hpp>
#include <boost/hana/unpack.hpp>

#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"
#include "mgfl/override/dispatch.hpp"
#include <mgfl/generated/override_checks.hpp>  // sanctioned here alone

#ifndef MGFL_KERNEL_OPTIONS  // options that change what a kernel set computes; its .cmake file defines it
#define MGFL_KERNEL_OPTIONS ""
#endif

namespace mgfl {

namespace {

namespace hana = boost::hana;

template <class... Ts>
constexpr auto as_hana(list<Ts...>*) {
  return hana::basic_tuple<hana::type<Ts>...>{};  // a third of hana::tuple's compile time
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
    return sizeof(detail::class_body<T, V>) > 0;
  else if constexpr (is_family<T>)
    return sizeof(detail::template_body<T, V>) > 0;
  else
    return sizeof(detail::function_body<T, V>) > 0;
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

template <class... Ts>
consteval bool all_checked(list<Ts...>*) {
  for (const bool fits : {checked_in_chain<Ts>(static_cast<vendors::chain*>(nullptr))...})
    if (!fits) return false;  // no fold: Clang's ends at 256
  return true;
}
static_assert(all_checked(static_cast<all_targets*>(nullptr)));

/// Who may offer a target, in the order of reports.
template <class... Vs, class... Ks>
constexpr auto concatenated(list<Vs...>*, list<Ks...>*) {
  return hana_of<list<Vs..., Ks...>>;
}
constexpr auto candidates =
    concatenated(static_cast<vendors::known*>(nullptr), static_cast<vendors::known_kernel_sets*>(nullptr));
constexpr auto candidate_names =
    hana::unpack(candidates, [](auto... v) { return std::array{decltype(v)::type::name...}; });

/// A row as constant data.
struct constant_row {
  std::string_view path, key;
  target_kind kind;
  std::string_view vendor;
  std::array<bool, candidate_names.size()> offered;
};

template <class T>
constexpr auto offered = hana::unpack(candidates, [](auto... v) {
  return std::array{manifest<typename decltype(v)::type>::overrides::template has<T>...};
});

constexpr auto constant_rows = hana::unpack(override_table, [](auto... t) {
  return std::array<constant_row, sizeof...(t)>{
      {{decltype(t)::type::path, decltype(t)::type::key, kind_of<typename decltype(t)::type>,
        active_vendor<typename decltype(t)::type>::name, offered<typename decltype(t)::type>}...}};
});

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
  std::vector<override_row> rows;
  for (const auto& row : constant_rows) {
    rows.push_back({row.path, row.key, row.kind, row.vendor, {}});
    for (std::size_t i = 0; i < candidate_names.size(); ++i)
      if (row.offered[i] && candidate_names[i] != row.vendor) rows.back().also.push_back(candidate_names[i]);
  }
  return rows;
}

std::string override_summary() {
  const auto rows = override_rows();
  std::string counts;
  std::ptrdiff_t overridden = 0;
  for (const auto name : names(hana_of<vendors::chain>)) {
    const auto count = std::ranges::count(rows, name, &override_row::vendor);
    overridden += count;
    if (count > 0) counts += concat(counts.empty() ? " (" : ", ", name, " ", count);
  }
  if (!counts.empty()) counts += ")";
  return concat("vendor '", vendors::preferred::name, "', kernels '", kernel_set_name, "': ", overridden,
                " of ", rows.size(), " targets overridden", counts);
}

std::uint64_t override_hash() {
  std::string text;
  for (const auto& row : constant_rows) text += concat(row.path, " ", row.vendor, "\n");
  for (const auto name : names(hana_of<vendors::chain>)) {
    text += concat("\n", name, ":");
    const auto candidate = std::ranges::find(candidate_names, name) - candidate_names.begin();
    for (const auto& row : constant_rows)
      if (row.offered[static_cast<std::size_t>(candidate)]) text += concat(" ", row.path);
  }
  for (const std::uint64_t hash : detail::folder_hashes) text += concat(" ", hash);
  text += MGFL_KERNEL_OPTIONS;
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
             "), kernels '", kernel_set_name, "' (known: ", join(kernel_set_names()),
             "), asked in the order ", join(names(hana_of<vendors::chain>), " -> "), " -> original\n");
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
