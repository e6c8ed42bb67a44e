/// Settings that may be left open, for messages and comparisons.
#pragma once

#include <optional>
#include <string>

#include "mgfl/base/error.hpp"

namespace mgfl {

/// The value, or "unset".
template <class Value>
std::string text_or_unset(const std::optional<Value>& value) {
  return value ? concat(*value) : "unset";
}

}  // namespace mgfl
