// The conformance suite on all ranks of an MPI job, and what only several ranks can show.
#include "tests/mpi/conformance.hpp"

#include <sched.h>
#include <unistd.h>

#include "policies/parallel/mpi.hpp"
#include "tests/support/mpi.hpp"

namespace mgfl_test {

using mgfl::parallel::Mpi;
using mgfl::parallel::MpiOptions;

struct Usual {
  static Mpi make() { return Mpi(session()); }
  static std::vector<std::int64_t> borders(int ranks) {
    // What travels with the call, and what is gathered.
    return {224, (1 << 17) / ranks};
  }
};

// Small segments and messages: many slabs, uneven last ones, tensors cut into several messages.
struct Cut {
  static Mpi make() { return Mpi(session(), MpiOptions{0, 256, 64, 48}); }
  static std::vector<std::int64_t> borders(int ranks) {
    return {256 / ranks, 48, 64, 64 * ranks, 3 * 64 * ranks, 2000};
  }
};

MGFL_CONFORMANCE(Usual, Cut);

TEST_CASE("large tensors of several slabs") {
  Mpi c = Usual::make();
  const std::int64_t n = (1 << 17) * c.size() * 2 + 5;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensor t = filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); });
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, dtype, [&](std::int64_t i) {
                      double sum = 0;
                      for (int r = 0; r < c.size(); ++r) sum += whole_number(r, i, dtype);
                      return sum;
                    })));
  }
}

TEST_CASE("calls that differ between ranks are named on every rank") {
  Mpi c = Usual::make();
  if (c.size() == 1) return;
  const bool odd = c.rank() == 1;
  Tensor two = mgfl::zeros({2}, at::kFloat), three = mgfl::zeros({3}, at::kFloat),
         wide = mgfl::zeros({2}, at::kDouble);

  CHECK_THROWS_WITH_AS(
      c.all_reduce(odd ? three : two, ReduceOp::sum),
      "the ranks of group 'world' disagree in operation 1: rank 0 calls all_reduce of 2 fp32 elements by "
      "sum, rank 1 calls all_reduce of 3 fp32 elements by sum; every rank must make the same call.",
      mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_reduce(odd ? wide : two, ReduceOp::sum),
                       doctest::Contains("rank 1 calls all_reduce of 2 fp64"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_reduce(two, odd ? ReduceOp::max : ReduceOp::sum), doctest::Contains("by max"),
                       mgfl::RunError);
  CHECK_THROWS_WITH_AS(odd ? c.barrier() : c.broadcast(two, 0), doctest::Contains("rank 1 calls barrier"),
                       mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.broadcast(two, odd ? 1 : 0), doctest::Contains("from 1"), mgfl::RunError);
  // Only rank 1 is wrong: all are told, with its rank.
  Tensor strided = mgfl::zeros({2, 2}, at::kFloat).t(), square = mgfl::zeros({2, 2}, at::kFloat);
  CHECK_THROWS_WITH_AS(c.all_reduce(odd ? strided : square, ReduceOp::sum),
                       doctest::Contains("wrong on rank 1, its tensor is not contiguous"), mgfl::RunError);
  c.barrier();
}

TEST_CASE("places in the job") {
  Mpi c = Usual::make();
  CHECK(c.size() == session().size());
  CHECK(c.rank() == session().rank());
  CHECK(session().local_rank() == session().rank());
  CHECK(session().local_size() == session().size());
  Mpi reversed = c.split(0, -c.rank(), "reversed");
  CHECK(reversed.rank() == c.size() - 1 - c.rank());
  CHECK(reversed.world_rank() == session().rank());
  Mpi moved = std::move(reversed);
  CHECK(moved.all_reduce_value(std::int64_t{1}, ReduceOp::sum) == c.size());
}

TEST_CASE("a rank bound to one CPU gets the launcher's back when it uses more threads") {
  cpu_set_t before, one, now;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  if (CPU_COUNT(&before) < 2) return;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(mgfl::parallel::set_threads(1, &session()) == 1);
  REQUIRE(sched_getaffinity(0, sizeof now, &now) == 0);
  CHECK(CPU_COUNT(&now) == 1);
  const int share = mgfl::parallel::default_threads(&session());
  CHECK(share >= 1);
  CHECK(share * session().local_size() <= std::max(CPU_COUNT(&before), session().local_size()));
  CHECK(mgfl::parallel::set_threads(2, &session()) == 2);
  REQUIRE(sched_getaffinity(0, sizeof now, &now) == 0);
  CHECK(CPU_EQUAL(&now, &before));
  CHECK(mgfl::num_threads() == 2);
  mgfl::parallel::set_threads(1, &session());
}

}  // namespace mgfl_test
