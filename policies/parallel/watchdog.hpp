/// Watches, from a thread of its own, that communications end in time while the threads that began them go
/// on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace mgfl::parallel::detail {

/// A communication that has begun. The watchdog's thread asks it.
class Watched {
 public:
  virtual ~Watched() = default;
  virtual bool ended() = 0;
  /// Why it may not have ended, for the user.
  virtual std::string complaint() const = 0;
};

/// The communications of one group end in the order of their start, so that the oldest one alone is watched;
/// its time runs from when the one before it ended.
class Watchdog {
 public:
  /// Looks every few hundredths of a second, and calls `look` as often, and first of all. Calls `late` with
  /// the complaint of a communication that has not ended after `timeout_seconds`; time during which this
  /// process was itself stopped does not count. Both are called from the watchdog's thread.
  Watchdog(double timeout_seconds, std::function<void()> look, std::function<void(const std::string&)> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(int group, std::shared_ptr<Watched> watched);

  /// Forgets a group's communications; none of them is asked any more once this has returned.
  void forget(int group);

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    std::shared_ptr<Watched> watched;
    Clock::time_point since;
  };

  void run();
  std::string first_complaint(Clock::time_point now, Clock::duration stopped);

  double timeout_seconds_;
  std::function<void()> look_;
  std::function<void(const std::string&)> late_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::map<int, std::deque<Waiting>> groups_;
  std::thread thread_;
};

}  // namespace mgfl::parallel::detail
