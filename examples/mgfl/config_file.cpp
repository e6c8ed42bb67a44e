#include "examples/mgfl/config_file.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "mgfl/base/error.hpp"

namespace mgfl::program {
namespace {

class TomlReader {
 public:
  TomlReader(std::string text, std::string path) : text_(std::move(text)), path_(std::move(path)) {}

  std::vector<ConfigEntry> read() {
    std::vector<ConfigEntry> entries;
    for (skip_blank(true); !done(); skip_blank(true)) {
      ConfigEntry entry;
      entry.line = line_;
      check(peek() != '[', "starts a section; this file has none, write the keys alone");
      entry.key = peek() == '"' || peek() == '\'' ? string() : word("=");
      check(!entry.key.empty(), "has no key before its \"=\"");
      skip_blank(false);
      check(peek() == '=', "has no \"=\" after \"", entry.key, "\"");
      ++at_;
      skip_blank(false);
      if (peek() == '[') {
        array(entry.values);
      } else {
        entry.values.push_back(value(""));
      }
      skip_blank(false);
      check(done() || peek() == '\n', "goes on after the value of \"", entry.key,
            "\"; quote a value with blanks, and write several values as [\"a\", \"b\"]");
      for (const auto& other : entries)
        check_user(other.key != entry.key, "the configuration ", path_, " sets \"", entry.key, "\" in line ",
                   other.line, " and again in line ", entry.line, "; keep one.");
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  bool done() const { return at_ >= text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }

  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    check_user(condition, "the configuration ", path_, " cannot be read: line ", line_, " ", parts..., ".");
  }

  void skip_blank(bool over_lines) {
    for (; !done(); ++at_) {
      if (peek() == '#')
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      else if (peek() == '\n' && over_lines)
        ++line_;
      else if (peek() != ' ' && peek() != '\t' && peek() != '\r')
        return;
    }
  }

  std::string word(const char* stops) {
    const auto end = std::min(text_.find_first_of(std::string(" \t\r\n#") + stops, at_), text_.size());
    const auto start = std::exchange(at_, end);
    return text_.substr(start, end - start);
  }

  std::string value(const char* stops) {
    if (peek() == '"' || peek() == '\'') return string();
    auto text = word(stops);
    check(!text.empty(), "has no value");
    return text;
  }

  std::string string() {
    const char quote = text_[at_++];
    std::string out;
    for (;; ++at_) {
      check(!done() && peek() != '\n', "has a string without its closing quote");
      if (peek() == quote) break;
      if (peek() == '\\' && quote == '"') {
        ++at_;
        constexpr std::string_view escapes = "\"\\nt", meanings = "\"\\\n\t";
        const auto known = done() ? std::string_view::npos : escapes.find(peek());
        check(known != std::string_view::npos,
              "has an escape other than \\\", \\\\, \\n and \\t; write '...' instead");
        out += meanings[known];
      } else {
        out += peek();
      }
    }
    ++at_;
    return out;
  }

  void array(std::vector<std::string>& values) {
    ++at_;
    for (skip_blank(true); peek() != ']'; skip_blank(true)) {
      check(!done(), "ends inside an array; close it with \"]\"");
      values.push_back(value(",]"));
      skip_blank(true);
      if (peek() == ',') {
        ++at_;
        continue;
      }
      check(!done(), "ends inside an array; close it with \"]\"");
      check(peek() == ']', "has no \",\" or \"]\" after an array's value");
    }
    ++at_;
  }

  std::string text_;
  std::string path_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code unknown;  // what cannot be examined is left to the open below
  check_user(!std::filesystem::is_directory(path, unknown), "the configuration ", path,
             " of --config is a folder; name a file.");
  check_user(file.is_open(), "the configuration ", path, " of --config cannot be opened; check the path.");
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  check_user(!file.bad(), "the configuration ", path, " of --config cannot be read; it must be a file.");
  return TomlReader(std::move(text), path).read();
}

}  // namespace mgfl::program
