// Test cases that fail, throw or are skipped on one rank: runner.py starts them one by one and judges the
// runner.
#include "tests/support/doctest.hpp"

#include <cstdlib>
#include <stdexcept>

#include "policies/parallel/mpi.hpp"
#include "tests/support/mpi.hpp"

using mgfl::parallel::Mpi;

namespace {

bool on_rank_1() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* text = std::getenv(name)) return std::atoi(text) == 1;
  return false;
}

}  // namespace

TEST_CASE("passes") {
  Mpi c(mgfl_test::session());
  c.barrier();
  CHECK(c.size() > 1);
}

TEST_CASE("fails on rank 1 before a barrier") {
  Mpi c(mgfl_test::session());
  REQUIRE(c.rank() != 1);
  c.barrier();
}

TEST_CASE("fails on rank 1 after a barrier") {
  Mpi c(mgfl_test::session());
  c.barrier();
  CHECK(c.rank() != 1);
}

TEST_CASE("throws on rank 1 before a barrier") {
  Mpi c(mgfl_test::session());
  if (c.rank() == 1) throw std::runtime_error("thrown on purpose");
  c.barrier();
}

TEST_CASE("skipped on rank 1" * doctest::skip(on_rank_1())) { CHECK(mgfl_test::session().size() > 1); }

TEST_CASE("passes at the end") {
  Mpi c(mgfl_test::session());
  c.barrier();
}
