#include "policies/data/jsonl_dataset.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/data/mapped_file.hpp"
#include "policies/data/sample_names.hpp"

namespace mgfl::data {
namespace {

using Json = nlohmann::json;

std::vector<std::int64_t> whole_numbers(const Json& list, std::string_view key, bool may_be_ignored) {
  check_user(list.is_array(), "has no list under \"", key, "\"");
  std::vector<std::int64_t> numbers;
  numbers.reserve(list.size());
  for (const Json& value : list) {
    const bool whole =
        value.is_number_integer() &&
        !(value.is_number_unsigned() &&
          value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    const bool valid = whole && (value.get<std::int64_t>() >= 0 ||
                                 (may_be_ignored && value.get<std::int64_t>() == ignored_label));
    check_user(valid, "has ", value.dump(-1, ' ', false, Json::error_handler_t::replace), " at position ",
               numbers.size(), " of \"", key, "\", where a whole number of 0 or more",
               may_be_ignored ? ", or -100," : "", " is due");
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

// `Real` is what they are kept as; either way they must lie in fp32's range, which a model computes in.
template <class Real>
std::vector<Real> real_numbers(const Json& list, std::string_view key, bool may_be_negative) {
  check_user(list.is_array(), "has no list under \"", key, "\"");
  std::vector<Real> values;
  values.reserve(list.size());
  for (const Json& value : list) {
    check_user(value.is_number() && std::isfinite(value.get<float>()) &&
                   (may_be_negative || value.get<float>() >= 0),
               "has ", value.dump(-1, ' ', false, Json::error_handler_t::replace), " at position ",
               values.size(), " of \"", key, "\", where a number", may_be_negative ? "" : " of 0 or more",
               " is due");
    values.push_back(value.get<Real>());
  }
  return values;
}

// Reads one line; errors are the rest of a sentence that begins with the file and the line.
Sample parse(std::string_view text, bool with_returns) {
  Json line;
  std::set<std::string> keys;
  std::string repeated;
  const auto note_key = [&](int depth, Json::parse_event_t event, Json& key) {
    if (event == Json::parse_event_t::key && depth == 1 && !keys.insert(key.get<std::string>()).second)
      repeated = key.get<std::string>();
    return true;
  };
  try {
    line = Json::parse(text, note_key);
  } catch (const Json::exception& error) {
    const std::string_view detail = error.what();
    const std::size_t from = detail.find("] ");
    throw UserError(concat("is not valid JSON: ", from == detail.npos ? detail : detail.substr(from + 2)));
  }
  check_user(line.is_object(), "is not a JSON object");
  check_user(repeated.empty(), "has the key \"", repeated, "\" twice; keep one");
  for (const auto& [key, value] : line.items()) check_sample_name(key, SampleNames::keys_of_lines);
  check_user(line.contains("input_ids"), "has no \"input_ids\"");
  auto ids = whole_numbers(line["input_ids"], "input_ids", false);
  check_user(!ids.empty(), "has no token in \"input_ids\"; leave the line out");
  std::vector<std::int64_t> labels;
  std::vector<float> mask;
  std::vector<double> returns;
  const auto check_length = [&](std::string_view key, std::size_t length) {
    check_user(length == ids.size(), "has ", ids.size(), " input_ids, but ", length, " ", key,
               "; they must be equally long");
  };
  if (line.contains("labels")) {
    labels = whole_numbers(line["labels"], "labels", true);
    check_length("labels", labels.size());
  }
  if (line.contains("loss_mask")) {
    mask = real_numbers<float>(line["loss_mask"], "loss_mask", false);
    check_length("values of loss_mask", mask.size());
  }
  if (with_returns) {
    check_user(line.contains("returns"), "has no \"returns\", which a value head learns");
    returns = real_numbers<double>(line["returns"], "returns", true);
    check_length("returns", returns.size());
  }
  return make_sample(std::move(ids), std::move(labels), std::move(mask), std::move(returns));
}

}  // namespace

struct JsonlDataset::File {
  struct Line {
    std::size_t begin, end;  // bytes
    std::int64_t number;     // from 1
  };

  File(const std::string& name, bool with_returns) : path(name), mapped(name), with_returns(with_returns) {
    const std::string_view text = all();
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      ++number;
      if (text.substr(begin, end - begin).find_first_not_of(" \t\r") != text.npos) {
        lines.push_back({begin, end, number});
        read(lines.back());
      }
      begin = end + 1;
    }
    check_user(!lines.empty(), path, " has no samples; it needs one {\"input_ids\": [...]} a line.");
  }

  std::string_view all() const {
    return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
  }

  Sample read(const Line& line) const {
    try {
      return parse(all().substr(line.begin, line.end - line.begin), with_returns);
    } catch (const UserError& error) {
      const std::string_view what = error.what();
      throw UserError(concat(path, ", line ", line.number, ", ", what,
                             what.ends_with('?') || what.ends_with('.') ? "" : "."));
    }
  }

  std::string path;
  MappedFile mapped;
  bool with_returns;
  std::vector<Line> lines;
};

JsonlDataset::JsonlDataset(const std::string& path, bool with_returns)
    : file_(std::make_shared<const File>(path, with_returns)) {}

std::int64_t JsonlDataset::size() const { return static_cast<std::int64_t>(file_->lines.size()); }
const std::string& JsonlDataset::name() const { return file_->path; }

Sample JsonlDataset::sample(std::int64_t number) const {
  check_run(number >= 0 && number < size(), "Sample ", number, " of ", name(), " was asked for, but it has ",
            size(), ".");
  return file_->read(file_->lines[static_cast<std::size_t>(number)]);
}

}  // namespace mgfl::data
