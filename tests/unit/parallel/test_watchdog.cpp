// The watchdog of communications that run beside the host.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "policies/parallel/watchdog.hpp"

using mgfl::parallel::detail::Watchdog;
using mgfl::parallel::detail::Watched;

namespace {

struct Communication : Watched {
  explicit Communication(std::string name_) : name(std::move(name_)) {}
  bool ended() override {
    ++asked;
    return done;
  }
  std::string complaint() const override { return name; }

  std::string name;
  std::atomic<bool> done = false;
  std::atomic<int> asked = 0;
};

struct Complaints {
  std::mutex mutex;
  std::vector<std::string> list;
  void add(const std::string& complaint) {
    const std::lock_guard lock(mutex);
    list.push_back(complaint);
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex);
    return list;
  }
};

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

TEST_CASE("what ends in time is not complained of, what does not is, once a time-out") {
  Complaints complaints;
  std::atomic<int> looks = 0;
  Watchdog watchdog(
      0.5, [&] { ++looks; }, [&](const std::string& complaint) { complaints.add(complaint); });
  const auto quick = std::make_shared<Communication>("quick"), slow = std::make_shared<Communication>("slow");
  watchdog.watch(0, quick);
  watchdog.watch(1, slow);
  quick->done = true;
  sleep(0.8);
  CHECK(complaints.all() == std::vector<std::string>{"slow"});
  CHECK(looks > 3);
  slow->done = true;
  sleep(0.8);
  CHECK(complaints.all().size() == 1);
}

TEST_CASE("one group's communications are waited for in turn") {
  Complaints complaints;
  Watchdog watchdog(
      0.6, [] {}, [&](const std::string& complaint) { complaints.add(complaint); });
  const auto first = std::make_shared<Communication>("first"),
             second = std::make_shared<Communication>("second");
  watchdog.watch(0, first);
  watchdog.watch(0, second);
  sleep(0.4);
  CHECK(second->asked == 0);
  first->done = true;
  sleep(0.4);  // more than the time-out since the second began, less since the first ended
  CHECK(second->asked > 0);
  CHECK(complaints.all().empty());
  sleep(0.5);
  CHECK(complaints.all() == std::vector<std::string>{"second"});
}

TEST_CASE("a group that is forgotten is left alone") {
  Complaints complaints;
  Watchdog watchdog(
      0.3, [] {}, [&](const std::string& complaint) { complaints.add(complaint); });
  const auto lost = std::make_shared<Communication>("lost");
  watchdog.watch(3, lost);
  sleep(0.1);
  watchdog.forget(3);
  const int asked = lost->asked;
  sleep(0.5);
  CHECK(lost->asked == asked);
  CHECK(lost.use_count() == 1);
  CHECK(complaints.all().empty());
}
