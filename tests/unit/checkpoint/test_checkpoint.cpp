// J5: what is found after a save went through, failed, or was killed at any moment.
#include "policies/checkpoint/checkpoint.hpp"

#include <csignal>
#include <fstream>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mgfl/tensor/factory.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"

namespace mgfl::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using test::TemporaryFolder;

// Two files and a state that all carry the iteration, so that a mixture would show.
std::vector<FileGroup> groups_of(std::int64_t iteration, std::int64_t elements = 1000) {
  Tensor weights = empty({elements}, at::kFloat), moments = empty({elements}, at::kDouble);
  weights.fill_(static_cast<double>(iteration));
  moments.fill_(static_cast<double>(-iteration));
  return {{"model.safetensors", {{"w", weights.sizes().vec(), weights}}},
          {"optimizer.safetensors", {{"exp_avg.w", moments.sizes().vec(), moments}}}};
}

std::string state_of(std::int64_t iteration) {
  return concat("{\"iteration\": ", iteration, ", \"lr\": 0.1}");
}

void save_at(const fs::path& dir, std::int64_t iteration, int keep_last = 0, std::int64_t elements = 1000) {
  save(dir, iteration, groups_of(iteration, elements), state_of(iteration), keep_last);
}

void check_sound(const Checkpoint& checkpoint, std::int64_t iteration) {
  CHECK(checkpoint.iteration() == iteration);
  CHECK(checkpoint.state() == state_of(iteration));
  CHECK(checkpoint.tensor("w").const_data_ptr<float>()[999] == static_cast<float>(iteration));
  CHECK(checkpoint.tensor("exp_avg.w").const_data_ptr<double>()[0] == static_cast<double>(-iteration));
}

TEST_CASE("the newest by number, whatever else lies in the folder") {
  TemporaryFolder dir;
  CHECK(contains(error_of([&] { load(dir.path()); }), "no complete checkpoint"));
  CHECK(contains(error_of([&] { load(dir / "absent"); }), "no complete checkpoint"));
  save_at(dir.path(), 9);
  save_at(dir.path(), 10);
  for (const char* name :
       {"step-abc", "iter_20", "iter_0000020x", "iter_", "iter_-000001", "iter_0000099.old"}) {
    fs::create_directory(dir / name);
    test::write_file(dir / name / "manifest.json", "{}");
  }
  fs::create_directory(dir / "iter_0000030");  // cut off before its manifest
  test::write_file(dir / "iter_0000030" / "model.safetensors", "half");
  CHECK(complete_iterations(dir.path()) == std::vector<std::int64_t>{9, 10});
  check_sound(load(dir.path()), 10);
  check_sound(load(dir.path(), 9), 9);
  CHECK(contains(error_of([&] { load(dir.path(), 30); }), "only of 9, 10"));
  CHECK(test::read_file(dir / "latest_checkpointed_iteration.txt") == "10");
  CHECK(fs::exists(dir / "step-abc"));
  const auto checkpoint = load(dir.path());
  CHECK(checkpoint.has("w"));
  CHECK(contains(error_of([&] { checkpoint.tensor("x"); }), "\"x\""));
}

TEST_CASE("a damaged file is an error that names it") {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    CAPTURE(name);
    TemporaryFolder dir;
    save_at(dir.path(), 10);
    const fs::path file = dir / "iter_0000010" / name;
    const std::string good = test::read_file(file);
    const auto message = [&](const std::string& bytes) {
      test::write_file(file, bytes);
      return error_of([&] { load(dir.path()); });
    };
    for (const auto& wrong : {message(good.substr(0, good.size() - 1)), message(good + "x"), message("")}) {
      CHECK(contains(wrong, file.string()));
      CHECK(contains(wrong, concat(good.size(), " were written")));
    }
    std::string flipped = good;
    flipped[flipped.size() / 2] ^= 1;
    CHECK(contains(message(flipped), concat(file.string(), ": has hash")));
    fs::remove(file);
    CHECK(contains(error_of([&] { load(dir.path()); }), file.string()));
    test::write_file(file, good);
    check_sound(load(dir.path()), 10);
  }
  TemporaryFolder dir;
  save_at(dir.path(), 10);
  const fs::path manifest = dir / "iter_0000010" / "manifest.json";
  const std::string good = test::read_file(manifest);
  for (const std::string& wrong :
       {std::string(), good.substr(0, good.size() / 2), std::string("[]"), std::string("{}"),
        std::string(R"({"format": "mgfl-checkpoint", "version": 1, "iteration": 10, "files": [{}]})"),
        std::string(R"({"format": "mgfl-checkpoint", "version": 1, "iteration": 10, "files": []})"),
        std::string(R"({"format": "mgfl-checkpoint", "version": 1, "iteration": 11, "files": []})"),
        std::string(R"({"format": "mgfl-checkpoint", "version": 2, "iteration": 10, "files": []})"),
        std::string(R"({"format": "mgfl-checkpoint", "version": 1, "iteration": 10,)"
                    R"( "files": [{"name": "../x", "size": 1, "xxh64": "0"}]})")}) {
    test::write_file(manifest, wrong);
    CHECK(contains(error_of([&] { load(dir.path()); }), manifest.string()));
  }
}

TEST_CASE("texts beside the tensors, and parts that are stored in another shape than they are held in") {
  TemporaryFolder dir;
  Tensor grid = empty({2, 3, 4}, at::kFloat);
  for (std::int64_t i = 0; i < 3; ++i) grid.narrow(1, i, 1).fill_(static_cast<double>(i));
  const std::vector<FileGroup> groups{{"model.safetensors", {{"middle", {8}, grid.narrow(1, 1, 1)}}}};
  const TextFile texts[] = {{"config.json", "{\"a\": 1}"}};
  save(dir.path(), 3, groups, "{}", 0, texts);
  const auto checkpoint = load(dir.path());
  CHECK(checkpoint.tensor("middle").equal(zeros({8}, at::kFloat).fill_(1)));
  CHECK(test::read_file(checkpoint.folder() / "config.json") == "{\"a\": 1}");
  test::write_file(checkpoint.folder() / "config.json", "{\"a\": 2}");
  CHECK(contains(error_of([&] { load(dir.path()); }), "config.json: has hash"));
  const TextFile clash[] = {{"model.safetensors", ""}};
  CHECK(contains(error_of([&] { save(dir.path(), 4, groups, "{}", 0, clash); }), "given twice"));
}

TEST_CASE("retention keeps the newest, and never the one just written less") {
  TemporaryFolder dir;
  for (const std::int64_t iteration : {2, 4, 6, 8}) save_at(dir.path(), iteration, 2);
  CHECK(complete_iterations(dir.path()) == std::vector<std::int64_t>{6, 8});
  save_at(dir.path(), 7, 1);  // went back to an older iteration
  CHECK(complete_iterations(dir.path()) == std::vector<std::int64_t>{7});
  save_at(dir.path(), 9, 0);
  CHECK(complete_iterations(dir.path()) == std::vector<std::int64_t>{7, 9});
  // The same iteration once more takes the old one's place.
  save(dir.path(), 9, groups_of(9), "{\"again\": true}", 0);
  CHECK(load(dir.path()).state() == "{\"again\": true}");
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 3);
}

TEST_CASE("what cannot be saved is refused, and nothing changes") {
  TemporaryFolder dir;
  save_at(dir.path(), 10);
  auto groups = groups_of(20);
  CHECK(contains(error_of([&] { save(dir.path(), 20, groups, "{\"a\": 1,}", 0); }), "not valid JSON"));
  groups[1].tensors[0].name = "w";
  CHECK(contains(error_of([&] { save(dir.path(), 20, groups, "{}", 0); }), "\"w\" is given twice"));
  for (const char* name : {"", "../x", "manifest.json", "state.json", ".", "a/b"}) {
    groups = groups_of(20);
    groups[0].file = name;
    CHECK(contains(error_of([&] { save(dir.path(), 20, groups, "{}", 0); }), "cannot be the name"));
  }
  test::write_file(dir / "file", "");
  CHECK(contains(error_of([&] { save_at(dir / "file", 20); }), "cannot be created"));
  check_sound(load(dir.path()), 10);
}

// Runs `body` in a child process, and gives what it exits with.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("a full disk: an error, the old one loads, and nothing is left behind") {
  TemporaryFolder dir;
  save_at(dir.path(), 10);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5000, 5000};  // the first file fits, the second does not
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto message = error_of([&] { save_at(dir.path(), 20, 1); });
    return contains(message, "optimizer.safetensors") && contains(message, "failed") ? 0 : 1;
  });
  CHECK(status == 0);
  CHECK(complete_iterations(dir.path()) == std::vector<std::int64_t>{10});
  check_sound(load(dir.path()), 10);
  CHECK(test::read_file(dir / "latest_checkpointed_iteration.txt") == "10");
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 2);
}

TEST_CASE(
    "killed at any moment, with one kept: a complete checkpoint is there, and the next save cleans up") {
  TemporaryFolder dir;
  save_at(dir.path(), 1, 1);
  std::int64_t last = 1;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::int64_t iteration = last + 1;; ++iteration) save_at(dir.path(), iteration, 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 1700 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto checkpoint = load(dir.path());
    CHECK(checkpoint.iteration() >= last);
    last = checkpoint.iteration();
    check_sound(checkpoint, last);
  }
  save_at(dir.path(), last + 1, 1);
  check_sound(load(dir.path()), last + 1);
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 2);
}

}  // namespace
}  // namespace mgfl::checkpoint
