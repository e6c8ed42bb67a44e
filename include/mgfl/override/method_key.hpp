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

/// "a.b.Class.method" -> "Class.method"; "a.b.module.name" -> "module.name": the last two segments.
consteval std::string_view method_key(std::string_view dotted) {
  const auto last = dotted.rfind('.');
  if (last == std::string_view::npos || last == 0 || last + 1 == dotted.size())
    throw "mgfl: a target path needs at least two dotted segments";
  const auto previous = dotted.rfind('.', last - 1);
  const auto key = previous == std::string_view::npos ? dotted : dotted.substr(previous + 1);
  return key.front() == '.' ? throw "mgfl: empty segment in a target path" : key;
}

}  // namespace mgfl
