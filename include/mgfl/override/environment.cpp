#include "mgfl/override/environment.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "mgfl/base/error.hpp"
#include "mgfl/base/log.hpp"
#include "mgfl/override/dispatch.hpp"

namespace mgfl {

namespace {

constexpr std::string_view blanks = " \t\r\n\f\v";

std::string plain_name(std::string_view text) {
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  std::string name(text.substr(first, text.find_last_not_of(blanks) - first + 1));
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return name;
}

template <class... Vs>
constexpr std::array<std::string_view, sizeof...(Vs)> names(list<Vs...>*) {
  return {{Vs::name...}};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

std::string preference_conflict(std::string_view value, std::string_view built_for,
                                std::span<const std::string_view> known) {
  const std::string wanted = plain_name(value);
  if (wanted.empty() || wanted == built_for) return {};
  const std::string remedy =
      std::ranges::find(known, wanted) != known.end()
          ? concat("Rebuild with  cmake -B build -DMG_FL_PREFER=", wanted, "  or unset MG_FL_PREFER.")
          : concat(
                "No vendor of that name is known: correct MG_FL_PREFER or unset it, or add the vendor with  "
                "cmake -B build -DMG_FL_PREFER=",
                wanted, " -DMGFL_VENDOR_DIRS=/path/to/", wanted);
  return concat(
      "MG_FL_PREFER='", wanted, "' in the environment, but this program was built for vendor '", built_for,
      "'.\n  The vendor is chosen at compile time; the variable cannot change it.\n  Known to this build: ",
      join(known), "\n  ", remedy);
}

std::string preference_conflict(std::string_view value) {
  constexpr auto known = names(static_cast<vendors::known*>(nullptr));
  return preference_conflict(value, vendors::preferred::name, known);
}

void check_environment(int rank) {
  const std::string conflict = preference_conflict(variable("MG_FL_PREFER"));
  if (conflict.empty()) return;
  if (plain_name(variable("MG_FL_PREFER_CONFLICT")) != "warn") throw UserError(conflict);
  static bool said = false;
  if (!said) log_warning(rank, conflict);
  said = true;
}

}  // namespace mgfl
