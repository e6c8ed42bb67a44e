/// Reads the files that --config names: the part of TOML that flags need.
#pragma once

#include <string>
#include <vector>

namespace mgfl::program {

/// One `key = value` of a configuration file.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;  // one, or those of an array
  int line = 0;
};

/// Reads `key = value` lines, whose values are strings, numbers, true, false and arrays of them; sections do
/// not exist. A value of one word may stand without quotes. UserError with file and line for whatever cannot
/// be read, and for a key that stands twice. (CLI11's own reader cuts quoted values at a '#' and cannot name
/// lines.)
std::vector<ConfigEntry> read_config_file(const std::string& path);

}  // namespace mgfl::program
