/// What a training run tells: metrics.jsonl for programs, a progress bar or lines for people.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <iosfwd>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mgfl::program {

/// One iteration. Numbers that do not exist (a skipped step's gradient norm, say) are NaN.
struct StepMetrics {
  std::int64_t iteration = 0;  // 1 for the first
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double lr = 0;         // the one that this iteration's update used
  std::int64_t tokens = 0;
  double tokens_per_second = 0;
  double loss_scale = 1;
  bool skipped = false;
  double num_zeros = std::numeric_limits<double>::quiet_NaN();  // zero gradients, where they are counted
  double step_seconds = 0;
  std::int64_t peak_rss_bytes = 0;
  std::optional<double> eval_loss;                    // where this iteration was followed by an evaluation
  std::vector<std::pair<std::string, double>> extra;  // further numbers, by name
};

/// One line of metrics.jsonl, without its end: numbers with 17 significant digits, null for those that are
/// not finite.
std::string to_json_line(const StepMetrics& metrics);

/// Appends a line an iteration to DIR/metrics.jsonl; one rank has it.
class MetricsWriter {
 public:
  /// Nothing is made or changed before the first `write`. An empty `dir` writes nothing at all.
  /// `resumed_iteration`: the run goes on after this iteration, so that lines beyond it are dropped; 0 is a
  /// new run, which keeps an older metrics.jsonl under the first free name metrics.N.jsonl.
  explicit MetricsWriter(std::string dir, std::int64_t resumed_iteration = 0);

  /// UserError where the first line finds no place to go, RunError where a later one fails; both name the
  /// file.
  void write(const StepMetrics& metrics);

 private:
  void open();

  std::string dir_;
  std::int64_t resumed_iteration_;
  std::ofstream file_;
};

/// Shows a run on a stream: on a terminal one bar with the time that is left, otherwise a line every so many
/// iterations.
class ProgressBar {
 public:
  /// Borrows `out`. Iterations count from `first_iteration` + 1 to `last_iteration`.
  ProgressBar(std::ostream& out, bool terminal, std::int64_t first_iteration, std::int64_t last_iteration,
              std::int64_t log_interval);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(const StepMetrics& metrics);

  /// Ends the bar's line, so that what is printed next starts on a fresh one.
  void finish();

 private:
  std::ostream& out_;
  bool terminal_;
  std::int64_t first_;
  std::int64_t last_;
  std::int64_t interval_;
  bool bar_open_ = false;
  std::chrono::steady_clock::time_point start_;
};

/// Whether stderr is a terminal.
bool stderr_is_terminal();

/// Largest resident memory of this process so far, in bytes.
std::int64_t peak_rss_bytes();

/// A duration for people: "0.42 s", "12.3 s", "3m05s", "2h07m".
std::string format_seconds(double seconds);

}  // namespace mgfl::program
