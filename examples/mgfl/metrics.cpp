#include "examples/mgfl/metrics.hpp"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <system_error>

#include "mgfl/base/error.hpp"

namespace mgfl::program {
namespace {

namespace fs = std::filesystem;

/// printf to a string. (LibTorch's folder shadows fmt's headers with those of a version that is not linked.)
[[gnu::format(printf, 1, 2)]] std::string format(const char* text, ...) {
  std::va_list arguments, again;
  va_start(arguments, text);
  va_copy(again, arguments);
  std::string out(static_cast<std::size_t>(std::max(std::vsnprintf(nullptr, 0, text, arguments), 0)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, text, again);
  va_end(again);
  va_end(arguments);
  return out;
}

std::string number(double value) { return std::isfinite(value) ? format("%.17g", value) : "null"; }

/// The iteration of a line of metrics.jsonl; nothing for a line that was cut short.
std::optional<std::int64_t> iteration_of(const std::string& line) {
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  const auto found = parsed.find("iteration");
  if (found == parsed.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

/// Keeps the lines up to an iteration; the file is replaced as a whole, so that a crash leaves the old or the
/// new one.
void keep_lines(const fs::path& path, std::int64_t last) {
  const fs::path next = path.string() + ".new";
  {
    std::ifstream from(path);
    std::ofstream to(next, std::ios::trunc);
    for (std::string line; std::getline(from, line);) {
      const auto iteration = iteration_of(line);
      if (iteration && *iteration <= last) to << line << '\n';
    }
    to.flush();
    check_run(!from.bad() && to.good(), "the metrics before the restart cannot be copied from ",
              path.string(), " to ", next.string(), "; is the disk full?");
  }
  std::error_code error;
  fs::rename(next, path, error);
  check_run(!error, "the file ", next.string(), " cannot be renamed to ", path.string(), ": ",
            error.message(), ".");
}

void move_aside(const fs::path& path) {
  for (int n = 1;; ++n) {
    const auto free_name = path.parent_path() / concat("metrics.", n, ".jsonl");
    std::error_code error;
    if (fs::exists(free_name, error)) continue;
    fs::rename(path, free_name, error);
    check_run(!error, "the file ", path.string(), " of an earlier run cannot be renamed to ",
              free_name.string(), ": ", error.message(), ".");
    return;
  }
}

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  auto line = concat(
      "{\"iteration\": ", m.iteration, ", \"loss\": ", number(m.loss),
      ", \"grad_norm\": ", number(m.grad_norm), ", \"lr\": ", number(m.lr), ", \"tokens\": ", m.tokens,
      ", \"tokens_per_second\": ", number(m.tokens_per_second), ", \"loss_scale\": ", number(m.loss_scale),
      ", \"skipped\": ", m.skipped ? "true" : "false", ", \"num_zeros\": ", number(m.num_zeros),
      ", \"step_seconds\": ", number(m.step_seconds), ", \"peak_rss_bytes\": ", m.peak_rss_bytes);
  if (m.eval_loss) line += ", \"eval_loss\": " + number(*m.eval_loss);
  for (const auto& [name, value] : m.extra) line += ", " + nlohmann::json(name).dump() + ": " + number(value);
  return line + "}";
}

MetricsWriter::MetricsWriter(std::string dir, std::int64_t resumed_iteration)
    : dir_(std::move(dir)), resumed_iteration_(resumed_iteration) {}

void MetricsWriter::open() {
  const fs::path path = fs::path(dir_) / "metrics.jsonl";
  std::error_code error;
  fs::create_directories(dir_, error);
  check_user(!error, "the folder ", dir_, " of --log-dir cannot be made: ", error.message(), ".");
  if (fs::exists(path, error)) {
    if (resumed_iteration_ > 0)
      keep_lines(path, resumed_iteration_);
    else
      move_aside(path);
  }
  file_.open(path, std::ios::app);
  check_user(file_.is_open(), "the file ", path.string(),
             " cannot be opened for writing; check the rights of --log-dir.");
}

void MetricsWriter::write(const StepMetrics& metrics) {
  if (dir_.empty()) return;
  if (!file_.is_open()) open();
  // Flushed at once, so that whoever follows the file, or a crash, finds whole lines.
  file_ << to_json_line(metrics) + '\n' << std::flush;
  check_run(file_.good(), "iteration ", metrics.iteration, " cannot be written to ", dir_,
            "/metrics.jsonl; is the disk full?");
}

ProgressBar::ProgressBar(std::ostream& out, bool terminal, std::int64_t first_iteration,
                         std::int64_t last_iteration, std::int64_t log_interval)
    : out_(out),
      terminal_(terminal),
      first_(first_iteration),
      last_(last_iteration),
      interval_(std::max<std::int64_t>(log_interval, 1)),
      start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::update(const StepMetrics& m) {
  const auto held_out = m.eval_loss ? format("  held-out %.4f", *m.eval_loss) : std::string();
  const auto numbers = format("loss %.4f", m.loss) + held_out + (m.skipped ? "  skipped" : "") +
                       format("  %.0f tokens/s", m.tokens_per_second);
  if (!terminal_) {
    if (m.iteration % interval_ != 0 && m.iteration != last_ && !m.eval_loss) return;
    out_ << concat("iteration ", m.iteration, "/", last_, "  ", numbers,
                   format("  grad norm %.4f  lr %.4g  ", m.grad_norm, m.lr), format_seconds(m.step_seconds),
                   "\n")
         << std::flush;
    return;
  }
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto done = std::max<std::int64_t>(m.iteration - first_, 1);
  const double left = elapsed / static_cast<double>(done) *
                      static_cast<double>(std::max<std::int64_t>(last_ - m.iteration, 0));
  const auto counts = concat(m.iteration, "/", last_, " ");
  const auto after = " " + numbers + "  ETA " + format_seconds(left);
  const std::size_t width = terminal_width() - 1;  // a full last column would wrap
  const std::size_t used = counts.size() + after.size() + 2;
  const std::size_t cells = used < width ? std::min<std::size_t>(width - used, 40) : 0;
  const double share = std::clamp(
      static_cast<double>(m.iteration) / static_cast<double>(std::max<std::int64_t>(last_, 1)), 0.0, 1.0);
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(cells));
  auto line = counts + "[" + std::string(filled, '#') + std::string(cells - filled, '.') + "]" + after;
  line.resize(std::min(line.size(), width));
  out_ << "\r\x1b[K" << line << std::flush;
  bar_open_ = true;
}

void ProgressBar::finish() {
  if (!bar_open_) return;
  out_ << '\n' << std::flush;
  bar_open_ = false;
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

std::int64_t peak_rss_bytes() {
  // getrusage's maximum outlives exec, so that a large parent would be counted; the kernel's own mark does
  // not.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.compare(0, 6, "VmHWM:") == 0) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 9.995) return format("%.2f s", seconds);
  if (seconds < 59.95) return format("%.1f s", seconds);
  const auto whole = std::llround(seconds);
  if (whole < 3600) return format("%lldm%02llds", whole / 60, whole % 60);
  return format("%lldh%02lldm", whole / 3600, whole % 3600 / 60);
}

}  // namespace mgfl::program
