// The deadline of calls that know none.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "policies/parallel/mpi_job.hpp"

using mgfl::parallel::detail::call_in_time;
using mgfl::parallel::detail::Slot;

namespace {

using Clock = std::chrono::steady_clock;

void spend(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TEST_CASE("a call is late once its time has passed, not before, and not once it has returned") {
  std::atomic<double> late_after = 0;
  const auto begin = Clock::now();
  const auto late = [&] {
    if (late_after == 0) late_after = seconds_since(begin);
  };
  call_in_time([] { spend(0.3); }, 0.9, nullptr, late);
  spend(1);
  CHECK(late_after == 0);
  const double second_call = seconds_since(begin);
  call_in_time([] { spend(1.2); }, 0.5, nullptr, late);
  CHECK(late_after - second_call >= 0.5);
  CHECK(late_after - second_call < 1.2);
}

TEST_CASE("a call that returns or throws at once takes no time-out, and what it throws goes on") {
  bool late = false;
  const auto begin = Clock::now();
  CHECK_THROWS_WITH_AS(
      call_in_time([] { throw std::runtime_error("thrown inside"); }, 20, nullptr, [&] { late = true; }),
      "thrown inside", std::runtime_error);
  std::vector<double> costs;
  for (int i = 0; i < 101; ++i) {
    const auto start = Clock::now();
    call_in_time([] {}, 20, nullptr, [&] { late = true; });
    costs.push_back(seconds_since(start));
  }
  std::nth_element(costs.begin(), costs.begin() + 50, costs.end());
  CHECK(costs[50] < 1e-3);
  CHECK(seconds_since(begin) < 10);
  CHECK_FALSE(late);
}

TEST_CASE("a rank within such a call shows that it lives") {
  const auto slot = std::make_unique<Slot>();
  slot->heartbeat = 0;
  std::int64_t first = 0, second = 0;
  call_in_time(
      [&] {
        spend(0.4);
        first = slot->heartbeat;
        spend(0.4);
        second = slot->heartbeat;
      },
      20, slot.get(), [] {});
  CHECK(first > 0);
  CHECK(second - first >= 100'000'000);  // ns
}

TEST_CASE("time in which the process was itself stopped does not count") {
  const pid_t child = ::fork();
  if (child == 0) {
    call_in_time([] { spend(0.5), spend(0.5); }, 1.5, nullptr, [] { ::_exit(17); });
    ::_exit(0);
  }
  spend(0.3);
  ::kill(child, SIGSTOP);
  spend(3);
  ::kill(child, SIGCONT);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
