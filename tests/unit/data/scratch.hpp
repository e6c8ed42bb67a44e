/// A folder of a test's own, files in it, and the message of an expected error.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "mgfl/base/error.hpp"

namespace mgfl::test {

/// A new folder, removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "mgfl_data_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw RunError("cannot make a folder for a test");
    folder_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  bool empty() const { return std::filesystem::is_empty(folder_); }

 private:
  std::string folder_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The message of the UserError that `f` throws; without one, a text that no test waits for.
template <class F>
std::string user_error(F&& f) {
  try {
    std::forward<F>(f)();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

/// Whether `text` holds every one of `parts`.
template <class... Parts>
bool has(const std::string& text, const Parts&... parts) {
  return ((text.find(parts) != std::string::npos) && ...);
}

}  // namespace mgfl::test
