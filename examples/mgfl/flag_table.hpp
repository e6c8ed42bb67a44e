/// The flags of one command: how each is called and explained, which values it takes, and where they go.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"

namespace mgfl::program {

using Strings = std::vector<std::string>;
using Names = std::vector<std::string>;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// The numbers that a flag accepts.
struct Range {
  double low = -infinity;
  double high = infinity;
  bool open_low = false;
  bool open_high = false;

  bool holds(double x) const {
    return std::isfinite(x) && (open_low ? x > low : x >= low) && (open_high ? x < high : x <= high);
  }
  std::string text() const {
    const auto lower = concat(open_low ? "above " : "of at least ", low);
    return high == infinity ? lower : concat(lower, open_high ? " and below " : " and at most ", high);
  }
};

inline constexpr Range positive{0, infinity, true};
inline constexpr Range not_negative{0, infinity};
inline constexpr Range probability_below_1{0, 1, false, true};

// Products of two such counts (iterations x samples, say) still fit in 64 bits.
inline constexpr std::int64_t largest_count = std::numeric_limits<std::int32_t>::max();

template <class Number>
std::string shortest(Number value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

template <class Number>
bool read_number(std::string_view text, Number& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else
      out += c;
  }
  return out + '"';
}

template <class T>
struct optional_value {
  using type = T;
};
template <class T>
struct optional_value<std::optional<T>> {
  using type = T;
};

template <class T>
bool has_value(const T&) {
  return true;
}
template <class T>
bool has_value(const std::optional<T>& field) {
  return field.has_value();
}
template <class T>
const T& value_of(const T& field) {
  return field;
}
template <class T>
const T& value_of(const std::optional<T>& field) {
  return *field;
}

enum class Arity { toggle, one, many };

struct Flag {
  std::string name;   // without dashes; also the key in a file
  std::string value;  // what stands for the value in --help
  std::string group;
  std::string help;
  Arity arity = Arity::one;
  // Reads the values; the label says where they stand, for error messages.
  std::function<void(const Strings& values, const std::string& label)> set;
  // The value as TOML; empty where none is set.
  std::function<std::string()> get;
  std::string initial;  // get() before anything is read
  bool given = false;   // a value other than an unset toggle was read

  std::string shown() const { return "--" + name; }
};

class Table {
 public:
  explicit Table(std::string command, std::string about)
      : command(std::move(command)), about(std::move(about)) {}

  std::string command;
  std::string about;
  std::vector<Flag> flags;
  std::vector<Names> exclusive;                                // at most one of each
  std::vector<Names> required;                                 // exactly one of each
  std::vector<std::pair<std::string, std::string>> dependent;  // the first makes sense with the second only

  void group(std::string name) { group_ = std::move(name); }

  template <class Field>
  void integer(const char* name, Field& field, const char* value, const char* help, std::int64_t low,
               std::int64_t high = largest_count) {
    add(
        name, value, help, Arity::one, field,
        [&field, low, high](const std::string& text, const std::string& label) {
          std::int64_t number = 0;
          check_user(read_number(text, number) && number >= low && number <= high, label,
                     " takes a whole number from ", low, " to ", high, ", not \"", text, "\".");
          field = number;
        },
        [&field] { return shortest(value_of(field)); });
  }

  template <class Field>
  void real(const char* name, Field& field, const char* value, const char* help, Range range) {
    add(
        name, value, help, Arity::one, field,
        [&field, range](const std::string& text, const std::string& label) {
          double number = 0;
          check_user(read_number(text, number) && range.holds(number), label, " takes a number ",
                     range.text(), ", not \"", text, "\".");
          field = number;
        },
        [&field] { return shortest(value_of(field)); });
  }

  template <class Field>
  void text(const char* name, Field& field, const char* value, const char* help) {
    add(
        name, value, help, Arity::one, field,
        [&field](const std::string& text, const std::string& label) {
          check_user(!text.empty(), label, " has an empty value; leave it out or give one.");
          field = text;
        },
        [&field] { return value_of(field).empty() ? std::string() : quoted(value_of(field)); });
  }

  /// One of the names; the field is a string, or an enumeration with to_string.
  template <class Field>
  void choice(const char* name, Field& field, const char* help, Names names) {
    using Value = typename optional_value<Field>::type;
    const auto value = "{" + join(names, ",") + "}";
    add(
        name, value.c_str(), help, Arity::one, field,
        [&field, names](const std::string& text, const std::string& label) {
          const auto found = std::find(names.begin(), names.end(), text);
          check_user(found != names.end(), label, " is one of ", join(names), ", not \"", text, "\".");
          if constexpr (std::is_enum_v<Value>)
            field = static_cast<Value>(found - names.begin());
          else
            field = text;
        },
        [&field] {
          if constexpr (std::is_enum_v<Value>)
            return quoted(std::string(to_string(value_of(field))));
          else
            return quoted(value_of(field));
        });
  }

  void toggle(const char* name, bool& field, const char* help) {
    add(
        name, "", help, Arity::toggle, field,
        [&field](const std::string& text, const std::string& label) {
          check_user(text == "true" || text == "false", label, " is true or false, not \"", text, "\".");
          field = text == "true";
        },
        [&field] { return std::string(field ? "true" : "false"); });
  }

  void list(const char* name, Strings& field, const char* value, const char* help) {
    Flag flag = described(name, value, help, Arity::many);
    flag.set = [&field](const Strings& values, const std::string& label) {
      check_user(std::none_of(values.begin(), values.end(), [](const auto& v) { return v.empty(); }), label,
                 " has an empty value; leave it out or give one.");
      field = values;
    };
    flag.get = [&field] {
      Strings items;
      std::transform(field.begin(), field.end(), std::back_inserter(items), quoted);
      return items.empty() ? std::string() : "[" + join(items) + "]";
    };
    flags.push_back(std::move(flag));
  }

  /// The flag must be there in every run of this command.
  bool must(const std::string& name) const {
    return std::find(required.begin(), required.end(), Names{name}) != required.end();
  }

  Flag* find(const std::string& name) {
    const auto found =
        std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
    return found == flags.end() ? nullptr : &*found;
  }

 private:
  Flag described(const char* name, const char* value, const char* help, Arity arity) const {
    Flag flag;
    flag.name = name;
    flag.value = value;
    flag.group = group_;
    flag.help = help;
    flag.arity = arity;
    return flag;
  }

  template <class Field, class Set, class Get>
  void add(const char* name, const char* value, const char* help, Arity arity, Field& field, Set set,
           Get get) {
    Flag flag = described(name, value, help, arity);
    flag.set = [set](const Strings& values, const std::string& label) {
      check_user(values.size() == 1, label, " takes one value, not ", values.size(), ".");
      set(values.front(), label);
    };
    flag.get = [get, &field] { return has_value(field) ? get() : std::string(); };
    flag.initial = flag.get();
    flags.push_back(std::move(flag));
  }

  std::string group_;
};

}  // namespace mgfl::program
