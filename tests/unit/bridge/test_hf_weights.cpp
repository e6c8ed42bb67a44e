// F8: weights folders, sound and not, and writing over older ones.
#include "policies/bridge/hf_weights.hpp"

#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/json.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"

namespace mgfl::bridge {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSpec;
using test::contains;
using test::error_of;
using test::TemporaryFolder;

const fs::path kData = MGFL_TEST_DATA;
const std::vector<TensorSpec> kSpecs{
    {"a", at::kFloat, {3}}, {"b", at::kFloat, {2}}, {"c", at::kFloat, {1}}};  // 12, 8, 4 bytes

void write_model(const fs::path& folder, std::uint64_t limit, double value = 1,
                 std::vector<TensorSpec> specs = kSpecs) {
  HfWeightsWriter writer(folder, specs, limit);
  for (const auto& spec : specs) writer.write(spec.name, zeros(spec.shape, spec.dtype).fill_(value));
  writer.write_text("config.json", std::to_string(value));
  writer.finish();
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void check_model(const fs::path& folder, double value,
                 const std::vector<std::string>& names = {"a", "b", "c"}) {
  HfWeights weights(folder);
  CHECK(weights.names() == names);
  for (const auto& name : weights.names())
    CHECK(weights.tensor(name).equal(zeros(weights.shape(name), at::kFloat).fill_(value)));
}

TEST_CASE("shards and their index") {
  TemporaryFolder folder;
  write_model(folder / "m", 16);
  CHECK(files_in(folder / "m") == std::set<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                                        "model-00002-of-00002.safetensors",
                                                        "model.safetensors.index.json"});
  const auto index = read_json(folder / "m" / "model.safetensors.index.json");
  CHECK(index["metadata"]["total_size"] == 24);
  CHECK(index["weight_map"].size() == 3);
  CHECK(index["weight_map"]["a"] == "model-00001-of-00002.safetensors");
  CHECK(index["weight_map"]["b"] == "model-00002-of-00002.safetensors");
  CHECK(index["weight_map"]["c"] == "model-00002-of-00002.safetensors");
  check_model(folder / "m", 1);
  write_model(folder / "one", 24);
  CHECK(files_in(folder / "one") == std::set<std::string>{"config.json", "model.safetensors"});
  check_model(folder / "one", 1);
  write_model(folder / "each", 1);  // a tensor larger than the limit gets a shard of its own
  CHECK(files_in(folder / "each").size() == 5);
  check_model(folder / "each", 1);
  CHECK(contains(error_of([&] { write_model(folder / "zero", 0); }), "0 bytes"));
}

TEST_CASE("over an older export: nothing stale, other files kept") {
  for (const auto& limits : {std::pair(1, 16), std::pair(16, 1), std::pair(1, 100), std::pair(100, 16),
                             std::pair(16, 16), std::pair(100, 100)}) {
    const int old_limit = limits.first, new_limit = limits.second;
    CAPTURE(old_limit);
    CAPTURE(new_limit);
    TemporaryFolder folder;
    const fs::path model = folder / "m";
    write_model(model, static_cast<std::uint64_t>(old_limit), 1);
    test::write_file(model / "README.md", "mine");
    fs::create_directories(model / "runs" / "one");
    test::write_file(model / "runs" / "one" / "log", "kept");
    write_model(model, static_cast<std::uint64_t>(new_limit), 2);
    check_model(model, 2);
    CHECK(test::read_file(model / "README.md") == "mine");
    CHECK(test::read_file(model / "runs" / "one" / "log") == "kept");
    CHECK(test::read_file(model / "config.json") == std::to_string(2.0));
    write_model(folder / "fresh", static_cast<std::uint64_t>(new_limit), 2);
    auto expected = files_in(folder / "fresh");
    expected.insert({"README.md", "runs"});
    CHECK(files_in(model) == expected);
    CHECK(files_in(folder.path()) == std::set<std::string>{"m", "fresh"});
  }
  TemporaryFolder folder;  // a folder without weights is filled, not exchanged
  fs::create_directory(folder / "m");
  test::write_file(folder / "m" / "notes", "mine");
  write_model(folder / "m", 16, 3);
  check_model(folder / "m", 3);
  CHECK(files_in(folder / "m").size() == 5);
  // Through a link, with a slash at the end, into a new parent.
  fs::create_directory_symlink(folder / "m", folder / "link");
  write_model(folder / "link", 100, 4);
  CHECK(fs::is_symlink(folder / "link"));
  check_model(folder / "m", 4);
  write_model((folder / "new" / "deep").string() + "/", 100, 5);
  check_model(folder / "new" / "deep", 5);
}

TEST_CASE("a writer that does not finish changes nothing") {
  TemporaryFolder folder;
  const fs::path model = folder / "m";
  write_model(model, 16, 1);
  {
    HfWeightsWriter writer(model, kSpecs, 1);
    writer.write("a", zeros({3}, at::kFloat));
    CHECK(contains(error_of([&] { writer.write("a", zeros({3}, at::kFloat)); }), "written twice"));
    CHECK(contains(error_of([&] { writer.write("x", zeros({3}, at::kFloat)); }), "not declared"));
    CHECK(contains(error_of([&] { writer.finish(); }), "\"b\" was declared but never written"));
  }
  check_model(model, 1);
  CHECK(files_in(folder.path()) == std::set<std::string>{"m"});
  test::write_file(folder / "file", "");
  CHECK(contains(error_of([&] { write_model(folder / "file", 16); }), "no folder"));
}

TEST_CASE("killed at any moment while an older export is replaced: one of the two loads, never a mixture") {
  TemporaryFolder folder;
  const fs::path model = folder / "m";
  write_model(model, 16, 1);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (double value = 2;; ++value) write_model(model, 16, value);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 1500 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    HfWeights weights(model);
    const float value = weights.tensor("a").const_data_ptr<float>()[0];
    CHECK(weights.tensor("b").const_data_ptr<float>()[0] == value);
    CHECK(weights.tensor("c").const_data_ptr<float>()[0] == value);
    CHECK(test::read_file(model / "config.json") == std::to_string(value));
  }
}

TEST_CASE("while an older export is replaced, index and shards are there at every moment") {
  TemporaryFolder folder;
  const fs::path model = folder / "m";
  write_model(model, 16, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int value = 2; value < 30; ++value) write_model(model, 16, value);
    ::_exit(0);
  }
  // Looking costs microseconds, a gap between two renames lasts longer.
  int missing = 0;
  while (::waitpid(child, nullptr, WNOHANG) == 0) {
    missing += ::access((model / "model.safetensors.index.json").c_str(), F_OK) != 0;
    missing += ::access((model / "model-00002-of-00002.safetensors").c_str(), F_OK) != 0;
  }
  CHECK(missing == 0);
}

TEST_CASE("index and shards that disagree") {
  TemporaryFolder folder;
  const fs::path model = folder / "m";
  const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  const auto with_map = [&](const std::string& map) {
    fs::remove_all(model);
    write_model(model, 16);
    test::write_file(model / "model.safetensors.index.json", concat("{\"weight_map\": ", map, "}"));
    return error_of([&] { HfWeights weights(model); });
  };
  const auto entry = [](const std::string& tensor, const std::string& file) {
    return concat('"', tensor, "\":\"", file, '"');
  };
  const std::string a = entry("a", first), b = entry("b", second), c = entry("c", second);
  CHECK(with_map(concat("{", a, ",", b, ",", c, "}")) == "(no error)");
  auto message = with_map(concat("{", a, ",", b, ",", c, ",", entry("d", second), "}"));
  CHECK(contains(message, second));
  CHECK(contains(message, "no tensor \"d\""));
  message = with_map(concat("{", a, ",", b, "}"));
  CHECK(contains(message, second));
  CHECK(contains(message, "\"c\""));
  CHECK(contains(with_map(concat("{", a, ",", b, ",", entry("c", first), "}")), "no tensor \"c\""));
  message =
      with_map(concat("{", a, ",", b, ",", c, ",", entry("d", "model-00003-of-00003.safetensors"), "}"));
  CHECK(contains(message, "model-00003-of-00003.safetensors: is missing"));
  CHECK(contains(message, "\"d\""));
  CHECK(contains(with_map(concat("{", a, ",", a, "}")), "duplicate key \"a\""));
  for (const char* file : {"../m/x.safetensors", "/etc/passwd", "", "..", "."})
    CHECK(contains(with_map(concat("{", entry("a", file), "}")), "no plain file name"));
  CHECK(contains(with_map("{\"a\": 1}"), "expected a string"));
  CHECK(contains(with_map("[]"), "weight_map"));

  fs::remove_all(model);
  write_model(model, 16);
  fs::remove(model / second);
  message = error_of([&] { HfWeights weights(model); });
  CHECK(contains(message, (model / second).string()));
  CHECK(contains(message, "\"b\""));

  // The same tensor in two shards.
  fs::remove_all(model);
  write_model(model, 16);
  const std::pair<std::string, Tensor> twice[] = {
      {"a", zeros({3}, at::kFloat)}, {"b", zeros({2}, at::kFloat)}, {"c", zeros({1}, at::kFloat)}};
  checkpoint::write_safetensors(model / second, twice);
  message = error_of([&] { HfWeights weights(model); });
  CHECK(contains(message, second));
  CHECK(contains(message, "\"a\""));

  fs::create_directory(folder / "empty");
  CHECK(contains(error_of([&] { HfWeights weights(folder / "empty"); }), "neither model.safetensors nor"));
  CHECK(contains(error_of([&] { HfWeights weights(folder / "absent"); }), "no such file"));
  write_model(folder / "one", 100);
  HfWeights one(folder / "one" / "model.safetensors");
  CHECK(contains(error_of([&] { one.tensor("x"); }), "no tensor \"x\""));
}

TEST_CASE("a model of two shards opens") {
  HfWeights weights(kData / "qwen3");
  CHECK(weights.names().size() == 46);
  CHECK(weights.file("model.embed_tokens.weight").path().filename() == "model-00001-of-00002.safetensors");
  CHECK(weights.file("model.norm.weight").path().filename() == "model-00002-of-00002.safetensors");
}

}  // namespace
}  // namespace mgfl::bridge
