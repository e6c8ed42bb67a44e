#include "policies/parallel/watchdog.hpp"

#include <utility>

namespace mgfl::parallel::detail {

Watchdog::Watchdog(double timeout_seconds, std::function<void()> look,
                   std::function<void(const std::string&)> late)
    : timeout_seconds_(timeout_seconds), look_(std::move(look)), late_(std::move(late)) {
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::watch(int group, std::shared_ptr<Watched> watched) {
  const std::lock_guard lock(mutex_);
  groups_[group].push_back({std::move(watched), Clock::now()});
}

void Watchdog::forget(int group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(group);
}

// Of the groups' oldest communications, once those that ended are off the list; empty where none is late.
std::string Watchdog::first_complaint(Clock::time_point now, Clock::duration stopped) {
  for (auto& [group, waiting] : groups_) {
    if (!waiting.empty()) waiting.front().since += stopped;
    while (!waiting.empty() && waiting.front().watched->ended()) {
      waiting.pop_front();
      if (!waiting.empty()) waiting.front().since = now;
    }
    if (!waiting.empty() &&
        std::chrono::duration<double>(now - waiting.front().since).count() > timeout_seconds_) {
      waiting.front().since = now;
      return waiting.front().watched->complaint();
    }
  }
  return {};
}

void Watchdog::run() {
  constexpr auto period = std::chrono::milliseconds(50);
  // A gap means that this process was stopped, perhaps with the whole job: the others deserve that time, too.
  constexpr auto long_gap = std::chrono::seconds(1);
  look_();
  auto last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [&] { return ending_; })) {
    const auto now = Clock::now();
    const auto stopped = now - last > long_gap ? now - last : Clock::duration{};
    last = now;
    const std::string complaint = first_complaint(now, stopped);
    lock.unlock();
    look_();
    if (!complaint.empty()) late_(complaint);
    lock.lock();
  }
}

}  // namespace mgfl::parallel::detail
