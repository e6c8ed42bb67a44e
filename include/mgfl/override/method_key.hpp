/// Turns the dotted path of an overridable thing into its short name, the method_key that reports print.
#pragma once

#include <cstddef>
#include <string_view>

namespace mgfl {

/// A string literal as template argument.
template <std::size_t N>
struct fixed_string {
  char text[N]{};
  constexpr fixed_string(const char (&literal)[N]) {  // NOLINT: implicit on purpose
    for (std::size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
  constexpr std::string_view view() const { return {text, N - 1}; }
};

/// "a.b.Class.method" -> "Class.method"; "a.b.module.name" -> "module.name": the last two segments. A path
/// that has fewer than two, an empty one, or anything but letters, digits and _ does not compile.
consteval std::string_view method_key(std::string_view dotted) {
  std::size_t dots = 0;
  char previous_character = '.';
  for (const char c : dotted) {
    if (c == '.' && previous_character == '.') throw "mgfl: empty segment in a target path";
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!word && c != '.') throw "mgfl: a target path is made of letters, digits, _ and dots";
    dots += c == '.';
    previous_character = c;
  }
  if (dots == 0) throw "mgfl: a target path needs at least two dotted segments";
  if (previous_character == '.') throw "mgfl: empty segment in a target path";
  const auto last = dotted.rfind('.');
  const auto previous = dotted.rfind('.', last - 1);
  return previous == std::string_view::npos ? dotted : dotted.substr(previous + 1);
}

}  // namespace mgfl
