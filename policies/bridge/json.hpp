/// Strict JSON: what it reads has each key once, and every error names the file and the place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace mgfl::bridge {

/// Parses `text`; `source` is what errors call it, e.g. a file's name. Keys keep their order.
/// UserError: a syntax error, a repeated key at any depth (it names the key), nesting deeper than 64, text
/// after the value.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& source);

/// Reads and parses a file. UserError as parse_json, or when the file cannot be read.
nlohmann::ordered_json read_json(const std::filesystem::path& file);

/// The whole of a file. UserError when it cannot be read.
std::string read_text(const std::filesystem::path& file);

}  // namespace mgfl::bridge
