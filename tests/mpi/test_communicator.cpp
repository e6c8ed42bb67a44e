// The conformance suite on all ranks of an MPI job, and what only several ranks can show.
#include "tests/mpi/conformance.hpp"

#include <sched.h>
#include <unistd.h>

#include "policies/parallel/mpi.hpp"
#include "tests/support/mpi.hpp"

namespace mgfl_test {

using mgfl::concat;
using mgfl::parallel::Mpi;
using mgfl::parallel::MpiOptions;

struct Usual {
  static Mpi make() { return Mpi(session()); }
  static std::vector<std::int64_t> borders(int ranks) {
    return {224};  // what travels with the call
  }
};

// Small stages: many rounds, uneven last ones.
struct Rounds {
  static constexpr std::int64_t stage = 640;
  static Mpi make() { return Mpi(session(), MpiOptions{.stage_bytes = stage}); }
  static std::vector<std::int64_t> borders(int ranks) {
    const std::int64_t piece = stage / (ranks + 1) / 64 * 64;
    return {224, stage, piece, piece * ranks, 3 * piece * ranks, 3 * stage};
  }
};

// Messages, as between machines.
struct Messages {
  static Mpi make() { return Mpi(session(), MpiOptions{.stage_bytes = 0}); }
  static std::vector<std::int64_t> borders(int ranks) { return {224, (1 << 17) / ranks}; }
};

// Small segments and messages: many slabs, uneven last ones, tensors cut into several messages.
struct Cut {
  static Mpi make() {
    return Mpi(session(),
               MpiOptions{.gather_bytes = 256, .segment_bytes = 64, .message_bytes = 48, .stage_bytes = 0});
  }
  static std::vector<std::int64_t> borders(int ranks) {
    return {256 / ranks, 48, 64, 64 * ranks, 3 * 64 * ranks, 2000};
  }
};

MGFL_CONFORMANCE(Usual, Rounds, Messages, Cut);

TEST_CASE_TEMPLATE("large tensors of several rounds", Maker, Usual, Messages) {
  Mpi c = Maker::make();
  const std::int64_t n = (1 << 17) * c.size() * 2 + 5;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto own = [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); };
    const auto sum = [&](std::int64_t i) { return reduced(c.size(), i, dtype, ReduceOp::sum); };
    Tensor t = filled(n, dtype, own);
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, dtype, sum)));
    const std::int64_t part_size = 300'007;
    const Tensor whole = filled(part_size * c.size(), dtype, own);
    Tensor part = mgfl::zeros({part_size}, dtype), gathered = mgfl::zeros({c.size(), part_size}, dtype);
    c.reduce_scatter(whole, part, ReduceOp::sum);
    CHECK(same_bits(part,
                    filled(part_size, dtype, [&](std::int64_t i) { return sum(i + part_size * c.rank()); })));
    c.all_gather(part, gathered);
    CHECK(same_bits(gathered, filled(part_size * c.size(), dtype, sum)));
  }
}

TEST_CASE("the bits of a sum do not depend on the way of the data") {
  Mpi ways[] = {Usual::make(), Rounds::make(), Messages::make(), Cut::make()};
  const std::int64_t n = 20'011;
  const auto own = [&](std::int64_t i) {
    return std::sin(1.0 + 17.0 * static_cast<double>(i) + 3.7 * ways[0].rank());
  };
  // By hand: in fp32, in the order of the ranks.
  std::vector<float> sums(static_cast<std::size_t>(n));
  for (int r = 0; r < ways[0].size(); ++r)
    for (std::int64_t i = 0; i < n; ++i)
      sums[static_cast<std::size_t>(i)] +=
          static_cast<float>(std::sin(1.0 + 17.0 * static_cast<double>(i) + 3.7 * r));
  const Tensor expected =
      filled(n, at::kFloat, [&](std::int64_t i) { return sums[static_cast<std::size_t>(i)]; });
  for (Mpi& way : ways) {
    Tensor t = filled(n, at::kFloat, own);
    way.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, expected));
    // Cut elsewhere: every element moves to another place of another tensor.
    Tensor whole = filled(n, at::kFloat, own);
    for (std::int64_t begin = 0; begin < n; begin += 1'777) {
      Tensor piece = whole.narrow(0, begin, std::min<std::int64_t>(1'777, n - begin));
      way.all_reduce(piece, ReduceOp::sum);
    }
    CHECK(same_bits(whole, expected));
  }
}

TEST_CASE("transfers that differ between two ranks are named on both, and the next ones work") {
  Mpi c = Usual::make();
  if (c.size() == 1) return;
  Tensor two = mgfl::zeros({2}, at::kFloat), three = mgfl::zeros({3}, at::kFloat),
         large = mgfl::zeros({999}, at::kFloat), strided = mgfl::zeros({2, 2}, at::kFloat).t(),
         square = mgfl::zeros({2, 2}, at::kFloat);
  const std::string misfit =
      "the ranks of group 'world' disagree in a transfer: rank 0 sends 3 fp32 elements, rank 1 expects 2 "
      "fp32 "
      "elements; both must name the same.";
  if (c.rank() == 0) {
    CHECK_THROWS_WITH_AS(c.send(three, 1), misfit.c_str(), mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.send(strided, 1), doctest::Contains("send in group 'world' is wrong on rank 0"),
                         mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.send(square, 1), doctest::Contains("recv in group 'world' is wrong on rank 1"),
                         mgfl::RunError);
    // The other transfers of an exchange arrive before it fails.
    large.fill_(7);
    const Transfer mixed[] = {Transfer::send(three, 1), Transfer::send(large, 1)};
    CHECK_THROWS_WITH_AS(c.exchange(mixed), misfit.c_str(), mgfl::RunError);
    c.send(two.fill_(5), 1);
  } else if (c.rank() == 1) {
    CHECK_THROWS_WITH_AS(c.recv(two, 0), misfit.c_str(), mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.recv(square, 0), doctest::Contains("send in group 'world' is wrong on rank 0"),
                         mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.recv(strided, 0), doctest::Contains("recv in group 'world' is wrong on rank 1"),
                         mgfl::RunError);
    const Transfer mixed[] = {Transfer::receive(two, 0), Transfer::receive(large, 0)};
    CHECK_THROWS_WITH_AS(c.exchange(mixed), misfit.c_str(), mgfl::RunError);
    CHECK(large.min().item<float>() == 7.0f);
    c.recv(two, 0);
    CHECK(two.min().item<float>() == 5.0f);
  }
  c.barrier();
}

TEST_CASE("counts that differ between ranks are named on every rank") {
  Mpi c = Usual::make();
  if (c.size() != 2) return;
  const bool odd = c.rank() == 1;
  const std::vector<std::int64_t> counts =
      odd ? std::vector<std::int64_t>{2, 1} : std::vector<std::int64_t>{1, 2};
  Tensor whole = mgfl::zeros({3}, at::kFloat), part = mgfl::zeros({1}, at::kFloat),
         result = mgfl::zeros({3}, at::kFloat);
  const char* named =
      "disagree in operation 1: rank 0 gives the counts 1, 2, rank 1 the counts 2, 1; every rank must";
  CHECK_THROWS_WITH_AS(c.all_gather_v(part, whole, counts), doctest::Contains(named), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.reduce_scatter_v(whole, part, counts, ReduceOp::sum),
                       doctest::Contains("rank 1 the counts 2, 1"), mgfl::RunError);
  const std::vector<std::int64_t> ones{1, 2};
  CHECK_THROWS_WITH_AS(c.all_to_all_v(whole, ones, result, ones),
                       doctest::Contains("rank 0 sends 2 rows, rank 1 expects 1 rows"), mgfl::RunError);
  c.barrier();
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

TEST_CASE("more groups than the board has places for, all at work") {
  Mpi c = Usual::make();
  // Groups of unlike members: all ranks, and pairs of them, so that ranks count unlike numbers of meetings.
  std::vector<Mpi> groups;
  for (int i = 0; i < 80; ++i)
    groups.push_back(c.split(i % 3 == 0 ? 0 : (c.rank() + i % 3) / 2, c.rank(), concat("group ", i)));
  for (int turn = 0; turn < 3; ++turn)
    for (std::size_t i = 0; i < groups.size(); ++i) {
      Mpi& group = groups[turn % 2 ? i : groups.size() - 1 - i];
      Tensor t =
          filled(1009, at::kFloat, [&](std::int64_t k) { return whole_number(group.rank(), k, at::kFloat); });
      group.all_reduce(t, ReduceOp::sum);
      CHECK(same_bits(t, filled(1009, at::kFloat, [&](std::int64_t k) {
                        return reduced(group.size(), k, at::kFloat, ReduceOp::sum);
                      })));
    }
}

TEST_CASE("messages longer than MPI counts are refused, on each rank for itself") {
  const std::int64_t gib = 1'073'741'824;
  for (const std::int64_t bytes : {std::int64_t{-1}, gib + 1, 8 * gib}) {
    CAPTURE(bytes);
    CHECK_THROWS_WITH_AS(Mpi(session(), MpiOptions{.gather_bytes = bytes, .stage_bytes = 0}),
                         concat("MpiOptions: gather_bytes ", bytes, " must be 0 to 1 GiB.").c_str(),
                         mgfl::UserError);
    CHECK_THROWS_WITH_AS(Mpi(session(), MpiOptions{.message_bytes = bytes}),
                         doctest::Contains(concat("message_bytes ", bytes, " must be positive").c_str()),
                         mgfl::UserError);
  }
  Mpi largest(session(), MpiOptions{.gather_bytes = gib, .message_bytes = gib, .stage_bytes = 0});
  CHECK(largest.all_reduce_value(std::int64_t{1}, ReduceOp::sum) == session().size());
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
