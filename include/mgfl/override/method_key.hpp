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

/// What is wrong with a dotted path.
enum class path_fault { none, one_segment, empty_segment, other_character };

/// Paths are segments of letters, digits and _, at least two, with single dots between.
consteval path_fault fault_of(std::string_view dotted) {
  std::size_t dots = 0;
  char previous = '.';
  for (const char c : dotted) {
    if (c == '.' && previous == '.') return path_fault::empty_segment;
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!word && c != '.') return path_fault::other_character;
    dots += c == '.';
    previous = c;
  }
  if (dots == 0) return path_fault::one_segment;
  return previous == '.' ? path_fault::empty_segment : path_fault::none;
}

/// "a.b.Class.method" -> "Class.method"; "a.b.module.name" -> "module.name": the last two segments.
consteval std::string_view method_key(std::string_view dotted) {
  const auto last = dotted.rfind('.');
  if (last == std::string_view::npos || last == 0) return dotted;
  const auto previous = dotted.rfind('.', last - 1);
  return previous == std::string_view::npos ? dotted : dotted.substr(previous + 1);
}

}  // namespace mgfl
