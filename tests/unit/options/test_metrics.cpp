#include "tests/support/doctest.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unistd.h>

#include "examples/mgfl/metrics.hpp"
#include "mgfl/base/error.hpp"

using namespace mgfl::program;
namespace fs = std::filesystem;

namespace {

/// A folder that does not exist yet, and goes away with the object.
struct TemporaryFolder {
  TemporaryFolder() : path(fs::temp_directory_path() / ("mgfl_metrics_" + std::to_string(getpid()))) {
    fs::remove_all(path);
  }
  ~TemporaryFolder() { fs::remove_all(path); }
  fs::path path;
};

StepMetrics step(std::int64_t iteration, double loss = 0.1) {
  StepMetrics metrics;
  metrics.iteration = iteration;
  metrics.loss = loss;
  return metrics;
}

std::vector<nlohmann::json> read_lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("numbers come back from metrics.jsonl bit for bit") {
  TemporaryFolder folder;
  auto metrics = step(3, 2.0 / 3);
  metrics.grad_norm = 1.0000000000000002;
  metrics.lr = 1e-300 / 3;
  metrics.tokens = 9007199254740993;
  metrics.tokens_per_second = std::numeric_limits<double>::infinity();
  metrics.loss_scale = 65536;
  metrics.skipped = true;
  metrics.step_seconds = 0.1;
  metrics.peak_rss_bytes = 123456789012;
  metrics.eval_loss = 1.0 / 7;
  metrics.extra = {{"load \"balancing\" loss", 0.3}};
  {
    MetricsWriter writer(folder.path.string());
    CHECK_FALSE(fs::exists(folder.path));
    writer.write(metrics);
  }
  const auto lines = read_lines(folder.path / "metrics.jsonl");
  REQUIRE(lines.size() == 1);
  const auto& line = lines[0];
  CHECK(line["iteration"] == 3);
  CHECK(line["loss"].get<double>() == 2.0 / 3);
  CHECK(line["grad_norm"].get<double>() == 1.0000000000000002);
  CHECK(line["lr"].get<double>() == 1e-300 / 3);
  CHECK(line["tokens"].get<std::int64_t>() == 9007199254740993);
  CHECK(line["tokens_per_second"].is_null());
  CHECK(line["num_zeros"].is_null());
  CHECK(line["loss_scale"].get<double>() == 65536);
  CHECK(line["skipped"] == true);
  CHECK(line["step_seconds"].get<double>() == 0.1);
  CHECK(line["peak_rss_bytes"].get<std::int64_t>() == 123456789012);
  CHECK(line["eval_loss"].get<double>() == 1.0 / 7);
  CHECK(line["load \"balancing\" loss"].get<double>() == 0.3);
  CHECK(nlohmann::json::parse(to_json_line(step(1))).contains("eval_loss") == false);
}

TEST_CASE("a resumed run drops the lines beyond its position, a new one keeps the old file") {
  TemporaryFolder folder;
  const auto path = folder.path / "metrics.jsonl";
  {
    MetricsWriter writer(folder.path.string());
    for (int i = 1; i <= 5; ++i) writer.write(step(i, i));
  }
  std::ofstream(path, std::ios::app) << "{\"iteration\": 2, \"lo";  // a line that a crash cut short
  {
    MetricsWriter writer(folder.path.string(), 3);
    CHECK_FALSE(fs::exists(folder.path / "metrics.jsonl.new"));
    writer.write(step(4, 40));
  }
  auto lines = read_lines(path);
  REQUIRE(lines.size() == 4);
  for (int i = 0; i < 3; ++i) CHECK(lines[i]["loss"] == i + 1);
  CHECK(lines[3]["iteration"] == 4);
  CHECK(lines[3]["loss"] == 40);

  for (int repeat = 0; repeat < 2; ++repeat) {
    MetricsWriter writer(folder.path.string());
    writer.write(step(1, 100));
  }
  CHECK(read_lines(path).size() == 1);
  CHECK(read_lines(folder.path / "metrics.1.jsonl").size() == 4);
  CHECK(read_lines(folder.path / "metrics.2.jsonl").size() == 1);
}

TEST_CASE("a log folder that cannot be written is named") {
  TemporaryFolder folder;
  std::ofstream(folder.path) << "a file";
  MetricsWriter writer(folder.path.string());
  try {
    writer.write(step(1));
    FAIL("wrote into a file");
  } catch (const mgfl::UserError& error) {
    CHECK(std::string(error.what()).find(folder.path.string()) != std::string::npos);
  }
  MetricsWriter none("");
  CHECK_NOTHROW(none.write(step(1)));
}

TEST_CASE("lines where nobody watches, a bar on a terminal") {
  std::ostringstream lines;
  {
    ProgressBar bar(lines, false, 0, 5, 2);
    for (int i = 1; i <= 5; ++i) bar.update(step(i, i));
  }
  const auto text = lines.str();
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);  // 2, 4 and the last
  CHECK(text.find("iteration 2/5  loss 2.0000") == 0);
  CHECK(text.find('\r') == std::string::npos);

  std::ostringstream terminal;
  {
    ProgressBar bar(terminal, true, 2, 4, 1);
    bar.update(step(3, 1.5));
    CHECK(terminal.str().find("\r\x1b[K3/4 [") == 0);
    CHECK(terminal.str().find("ETA") != std::string::npos);
    bar.update(step(4));
    bar.finish();
  }
  const auto shown = terminal.str();
  CHECK(std::count(shown.begin(), shown.end(), '\n') == 1);
  CHECK(shown.back() == '\n');
}

TEST_CASE("durations and memory") {
  CHECK(format_seconds(0.42) == "0.42 s");
  CHECK(format_seconds(12.34) == "12.3 s");
  CHECK(format_seconds(59.96) == "1m00s");
  CHECK(format_seconds(185) == "3m05s");
  CHECK(format_seconds(3599.7) == "1h00m");
  CHECK(format_seconds(7620) == "2h07m");
  CHECK(format_seconds(std::nan("")) == "?");
  const auto before = peak_rss_bytes();
  CHECK(before > (1 << 20));
  std::vector<char> block(std::size_t{64} << 20, 1);
  CHECK(peak_rss_bytes() >= before + (std::int64_t{32} << 20) * (block[5] == 1));
}
