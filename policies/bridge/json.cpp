#include "policies/bridge/json.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"

namespace mgfl::bridge {
namespace {

using Json = nlohmann::ordered_json;

// No file of ours nests deeper than five; a bound keeps hostile input from exhausting the stack of later
// visitors.
constexpr std::size_t kMaxDepth = 64;

// nlohmann's own DOM parser keeps the last of two equal keys without a word, so the document is built here.
class StrictBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  StrictBuilder(Json& root, std::string_view text, const std::string& source)
      : root_(root), text_(text), source_(source) {}

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool binary(binary_t&) { return false; }  // never met in text

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    Level& level = levels_.back();
    check_user(level.seen.insert(name).second, source_, ": duplicate key \"", name,
               "\" in one JSON object; each key may stand there once");
    level.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) {
    std::size_t line = 1, column = 1;
    for (std::size_t i = 0; i + 1 < position && i < text_.size(); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    // nlohmann prefixes its own name and position; ours count for a reader of the file.
    std::string reason = error.what();
    if (const auto start = reason.find("syntax error"); start != std::string::npos)
      reason = reason.substr(start);
    throw UserError(concat(source_, ": not valid JSON at line ", line, ", column ", column, " (byte ",
                           position, "): ", reason, "; the file may be cut short or edited by hand"));
  }

 private:
  struct Level {
    Json* value;
    std::unordered_set<std::string> seen;
    std::string key;
  };

  Json* insert(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& array = level.value->get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    // Appends without the ordered map's linear search: `seen` has already found the key new.
    auto& object = level.value->get_ref<Json::object_t&>();
    object.push_back({std::move(level.key), std::move(value)});
    return &object.back().second;
  }

  bool put(Json value) {
    insert(std::move(value));
    return true;
  }

  bool open(Json value) {
    check_user(levels_.size() < kMaxDepth, source_, ": JSON nested deeper than ", kMaxDepth, " levels");
    Json* inserted = insert(std::move(value));
    levels_.push_back({inserted, {}, {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  Json& root_;
  std::string_view text_;
  const std::string& source_;
  std::vector<Level> levels_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  Json root;
  StrictBuilder builder(root, text, source);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return root;
}

std::string read_text(const std::filesystem::path& file) {
  std::error_code ignored;
  check_user(!std::filesystem::is_directory(file, ignored), file.string(), ": is a folder, expected a file");
  std::ifstream stream(file, std::ios::binary);
  check_user(stream.is_open(), file.string(), ": cannot be opened (", std::strerror(errno), ")");
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  check_user(!stream.bad(), file.string(), ": cannot be read (", std::strerror(errno), ")");
  return text;
}

Json read_json(const std::filesystem::path& file) { return parse_json(read_text(file), file.string()); }

}  // namespace mgfl::bridge
