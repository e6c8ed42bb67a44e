// The main function of every test program under mpirun: a failure on any rank fails the run, in bounded time,
// by name.
#include "tests/support/doctest.hpp"
// A crash is left to the system: mpirun names the rank and ends the others, where a handler might wait for
// them.
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/mpi.hpp"

namespace {

// A rank that failed gives the others this long to come to the end of the test case.
constexpr double failed_seconds = 5;
// A rank that passed waits for slower ones; if one of them fails, that one ends the run long before.
constexpr double passed_seconds = 60;

struct Runner {
  const mgfl::parallel::MpiSession* session = nullptr;
  MPI_Comm comm = MPI_COMM_NULL;
  std::ostringstream output;  // of ranks other than 0, shown where they fail
  bool failed = false;
};

Runner& runner() {
  static Runner instance;
  return instance;
}

struct State {
  std::uint64_t name = 0;
  std::int32_t failed = 0;
  std::int32_t unused = 0;
};

void show_output() {
  Runner& r = runner();
  if (r.session->rank() == 0) {
    std::cout << std::flush;
    return;
  }
  std::istringstream lines(r.output.str());
  std::string text;
  for (std::string line; std::getline(lines, line);)
    text += "[rank " + std::to_string(r.session->rank()) + "] " + line + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  r.output.str("");
}

// Tells every rank how the test case ended here.
void share(const std::string& name, bool failed) {
  Runner& r = runner();
  const int rank = r.session->rank(), size = r.session->size();
  if (failed) {
    show_output();
    std::fprintf(stderr, "[rank %d] FAILED: %s\n", rank, name.c_str());
  }
  const State own{std::hash<std::string>{}(name), failed, 0};
  std::vector<State> all(static_cast<std::size_t>(size));
  MPI_Request request;
  MPI_Iallgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, r.comm, &request);
  const auto begin = std::chrono::steady_clock::now();
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) break;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > (failed ? failed_seconds : passed_seconds)) {
      std::fprintf(stderr,
                   "[rank %d] %s '%s', but other ranks did not come to its end; the run is aborted.\n", rank,
                   failed ? "failed in" : "passed", name.c_str());
      std::fflush(stderr);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  for (int other = 0; other < size; ++other) {
    const State& state = all[static_cast<std::size_t>(other)];
    if (state.name != own.name) {
      std::fprintf(stderr, "[rank %d] is at the end of '%s', rank %d at that of another test case.\n", rank,
                   name.c_str(), other);
      r.failed = true;
    }
    if (state.failed) {
      r.failed = true;
      if (rank == 0 && other != 0) std::printf("[rank 0] rank %d failed in '%s'\n", other, name.c_str());
    }
  }
}

struct ShareFailures : doctest::IReporter {
  explicit ShareFailures(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& data) override { name_ = data.m_name; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    share(name_, !stats.testCaseSuccess);
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  // Skipped on this rank, perhaps not on the others, which will share how it ended.
  void test_case_skipped(const doctest::TestCaseData& data) override { share(data.m_name, false); }

 private:
  std::string name_;
};

DOCTEST_REGISTER_LISTENER("share_failures", 1, ShareFailures);

}  // namespace

namespace mgfl_test {

const mgfl::parallel::MpiSession& session() { return *runner().session; }

}  // namespace mgfl_test

int main(int argc, char** argv) {
  if (!mgfl::parallel::launched_by_mpi()) {
    std::fprintf(stderr, "start this program by mpirun\n");
    return 1;
  }
  mgfl::parallel::MpiSession session(30);
  Runner& r = runner();
  r.session = &session;
  MPI_Comm_dup(MPI_COMM_WORLD, &r.comm);
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  if (session.rank() != 0) context.setCout(&r.output);
  const int result = context.run();
  MPI_Comm_free(&r.comm);
  return result != 0 || r.failed;
}
