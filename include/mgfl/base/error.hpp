/// The two kinds of failure that mgfl reports, and the checks that raise them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace mgfl {

/// Something the user can put right: a bad file, flag, value or layout. The program ends with status 1.
class UserError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A failure while running: a lost rank, a full disk, a broken invariant. The program ends with status 2.
class RunError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A number as short as it can be and still mean the same: 0.1, not 0.10000000000000001.
inline std::string shortest_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  if (std::strtod(text, nullptr) != value) std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// Joins printable values to one sentence, e.g. `concat("expected ", 3, " rows, found ", 4)`.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);  // of parts that print numbers themselves
  const auto add = [&](const auto& part) {
    if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(part)>>)
      text << shortest_text(part);
    else
      text << part;
  };
  (add(parts), ...);
  return text.str();
}

/// Joins a range with commas, e.g. a shape: `join(shape)` gives "2, 3".
template <class Range>
std::string join(const Range& range, std::string_view separator = ", ") {
  std::ostringstream text;
  bool first = true;
  for (const auto& value : range) {
    if (!first) text << separator;
    text << value;
    first = false;
  }
  return text.str();
}

/// The first few of many names, for a message: "a, b, c and 117 more".
template <class Range>
std::string some_of(const Range& names, std::size_t most = 6) {
  std::ostringstream text;
  std::size_t count = 0;
  for (const auto& name : names)
    if (count++ < most) text << (count > 1 ? ", " : "") << name;
  if (count > most) text << " and " << count - most << " more";
  return count == 0 ? "nothing" : text.str();
}

/// Throws UserError with the joined parts unless `condition` holds. Say what is wrong, where, the values,
/// what to do.
template <class... Parts>
void check_user(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw UserError(concat(parts...));
}

/// Throws RunError with the joined parts unless `condition` holds.
template <class... Parts>
void check_run(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw RunError(concat(parts...));
}

}  // namespace mgfl
