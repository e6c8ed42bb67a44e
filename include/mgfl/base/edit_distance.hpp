/// How far two names are apart, for messages that suggest what was meant.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace mgfl {

/// Levenshtein's distance: characters inserted, removed or replaced.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // distances of a's first i characters to b's first j
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      const std::size_t shifted = (row[j] < diagonal ? row[j] : diagonal) + 1;
      row[j + 1] = replaced < shifted ? replaced : shifted;
    }
  }
  return row.back();
}

}  // namespace mgfl
