// The conformance suite on one plain process.
#include "tests/mpi/conformance.hpp"

#include "policies/parallel/launcher.hpp"
#include "policies/parallel/self.hpp"

namespace mgfl_test {

struct Alone {
  static mgfl::parallel::Self make() { return {}; }
  static std::vector<std::int64_t> borders(int) { return {1000}; }
};
MGFL_CONFORMANCE(Alone);

}  // namespace mgfl_test

TEST_CASE("a plain process is not a rank of an MPI job") { CHECK_FALSE(mgfl::parallel::launched_by_mpi()); }

TEST_CASE("the guard turns exceptions into exit statuses") {
  using mgfl::parallel::run_guarded;
  CHECK(run_guarded([] { return 0; }) == 0);
  CHECK(run_guarded([] { return 7; }) == 7);
  CHECK(run_guarded([]() -> int {
          throw mgfl::UserError("a file is missing (expected in this test's output).");
        }) == 1);
  CHECK(run_guarded(
            []() -> int { throw mgfl::RunError("a disk is full (expected in this test's output)."); }) == 2);
  CHECK(run_guarded([]() -> int { throw 3; }) == 2);
}

TEST_CASE("threads") {
  const int share = mgfl::parallel::default_threads();
  CHECK(share >= 1);
  CHECK(mgfl::parallel::set_threads(0) == share);
  CHECK(mgfl::num_threads() == share);
  CHECK(mgfl::parallel::set_threads(1) == 1);
  CHECK(mgfl::num_threads() == 1);
  CHECK_THROWS_AS(mgfl::parallel::set_threads(-1), mgfl::UserError);
}
