// Ranks of different builds do not start together; ranks of one build do.
#include "tests/support/mpi.hpp"

#include "tests/support/doctest.hpp"

#include <string>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/agreement.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl;
using parallel::check_same_overrides;

TEST_CASE("ranks of this build agree") {
  parallel::Mpi world(mgfl_test::session());
  CHECK_NOTHROW(check_same_overrides(world));
  parallel::Self self;
  CHECK_NOTHROW(check_same_overrides(self));
}

TEST_CASE("the ranks that differ are named, on every rank, with both builds") {
  parallel::Mpi world(mgfl_test::session());
  const bool odd = world.rank() % 2 == 1;
  const std::string summary = odd ? "vendor 'musa', kernels 'aten'" : "vendor 'default', kernels 'aten'";
  std::string message;
  try {
    check_same_overrides(world, odd ? 0xabcdef0123456789 : 0x1, summary);
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message ==
        concat(
            "the ranks of this job were built with different overrides:\n  ",
            world.size() == 2 ? "rank 0" : "ranks 0, 2", ": vendor 'default', kernels 'aten', files 1\n  ",
            world.size() == 2 ? "rank 1" : "ranks 1, 3",
            ": vendor 'musa', kernels 'aten', files abcdef0123456789\n"
            "  Start every rank from one build; `mgfl overrides` of each program prints what it overrides."));
}

TEST_CASE("equal names with other manifests are a difference") {
  parallel::Mpi world(mgfl_test::session());
  CHECK_THROWS_AS(check_same_overrides(world, world.rank() == world.size() - 1 ? 2 : 1, "vendor 'default'"),
                  UserError);
}

TEST_CASE("of long texts of any length, the lines that differ are shown") {
  parallel::Mpi world(mgfl_test::session());
  const bool last = world.rank() + 1 == world.size();
  std::string text = last ? "lr 2\n" : "lr 1\n";
  for (int line = 0; line < 1000; ++line) text += concat("setting ", line, " is the same\n");
  if (last) text += "of the last rank alone";
  std::string message;
  try {
    parallel::check_same(world, text, parallel::throw_different_flags);
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message == concat("the ranks were started with different commands or flags:\n  ",
                          world.size() == 2 ? "rank 0" : "ranks 0, 1, 2", ": lr 1\n  rank ", world.size() - 1,
                          ": lr 2; of the last rank alone\n  Give every rank the same command line."));
}

TEST_CASE("one rank has an empty text") {
  parallel::Mpi world(mgfl_test::session());
  CHECK_NOTHROW(parallel::check_same(world, "", parallel::throw_different_flags));
  CHECK_THROWS_AS(parallel::check_same(world, world.rank() == 0 ? "" : "a", parallel::throw_different_flags),
                  UserError);
}

TEST_CASE("machines that lack the same are told of; unlike ones do not start") {
  parallel::Mpi world(mgfl_test::session());
  CHECK_NOTHROW(parallel::check_same_kernels(world, ""));
  CHECK_NOTHROW(parallel::check_same_kernels(world, "no AVX here"));
  std::string message;
  try {
    parallel::check_same_kernels(world, world.rank() == 1 ? "no AVX here" : "");
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message ==
        concat("the ranks of this job would compute with different kernels, and their replicas drift "
               "apart:\n  ",
               world.size() == 2 ? "rank 0" : "ranks 0, 2, 3",
               ": nothing is lacking\n  rank 1: no AVX here\n"
               "  Build for what all machines have, or run on machines of one kind."));
}
