/// What every communicator must do, whatever its model and size: the same bodies run for Self and for Mpi.
#pragma once

#include "tests/support/doctest.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/tensor/factory.hpp"

// A `Maker` has a static make() that returns the communicator, and `borders`: sizes in bytes at which its way
// of working changes, for its size.
namespace mgfl_test {

using mgfl::ReduceOp;
using mgfl::Tensor;
using mgfl::parallel::Transfer;

/// Tensor of `dtype` whose element i is value(i), given in fp64, which holds all values used here exactly.
template <class F>
Tensor filled(std::int64_t elements, at::ScalarType dtype, F&& value) {
  Tensor wide = mgfl::empty({elements}, at::kDouble);
  double* data = wide.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < elements; ++i) data[i] = value(i);
  return wide.to(dtype);
}

inline Tensor values(std::initializer_list<double> list, at::ScalarType dtype) {
  return filled(static_cast<std::int64_t>(list.size()), dtype,
                [&](std::int64_t i) { return list.begin()[i]; });
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// A small whole number from rank and place; its sums over a few ranks are exact in every dtype.
inline double whole_number(int rank, std::int64_t i, at::ScalarType dtype) {
  const auto n = static_cast<double>((i * 7 + rank * 3 + (i / 11) * rank) % 11);
  if (dtype == at::kBool) return (i + rank) % 3 == 0 ? 1 : 0;
  return dtype == at::kByte ? n : n - 5;
}

inline constexpr at::ScalarType all_dtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                                at::kLong,  at::kInt,    at::kByte,     at::kBool};

/// Sizes in elements on both sides of every border; primes among them.
template <class Maker>
std::vector<std::int64_t> sizes(int ranks, std::int64_t element_bytes) {
  std::vector<std::int64_t> result{0, 1, 2, 3, 17};
  for (const std::int64_t bytes : Maker::borders(ranks))
    for (const std::int64_t delta : {-1, 0, 1}) result.push_back(bytes / element_bytes + delta);
  return result;
}

/// Unlike counts for each rank, from `least` on, every third one 0.
inline std::vector<std::int64_t> uneven(std::int64_t least, int ranks) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(r % 3 == 1 ? 0 : least + r);
  return counts;
}

inline std::int64_t sum_of(const std::vector<std::int64_t>& counts, int ranks) {
  return std::accumulate(counts.begin(), counts.begin() + ranks, std::int64_t{0});
}

/// What a reduction of all ranks' whole_number makes of element i, by a plain loop in fp64.
inline double reduced(int ranks, std::int64_t i, at::ScalarType dtype, ReduceOp op) {
  double result = whole_number(0, i, dtype);
  for (int r = 1; r < ranks; ++r) {
    const double other = whole_number(r, i, dtype);
    result = op == ReduceOp::max || dtype == at::kBool ? std::max(result, other) : result + other;
  }
  return op == ReduceOp::avg ? result / ranks : result;
}

/// Element i of what `from` sends to `to`.
inline double whole_number(int from, int to, std::int64_t i, at::ScalarType dtype) {
  return whole_number(from * 5 + to, i, dtype);
}

TEST_CASE_TEMPLATE_DEFINE("known sums, averages and shares", Maker, conform_known) {
  auto c = Maker::make();
  const bool first = c.rank() % 2 == 0;
  const int evens = (c.size() + 1) / 2, odds = c.size() / 2;  // ranks in turn hold one of two tensors
  const double sums[] = {1.5 * evens + 0.5 * odds, 2.5 * evens + 1.0 * odds};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    const Tensor own = first ? values({1.5, 2.5}, dtype) : values({0.5, 1.0}, dtype);
    Tensor t = own.clone();
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, values({sums[0], sums[1]}, dtype)));
    t = own.clone();
    c.all_reduce(t, ReduceOp::avg);
    CHECK(same_bits(t, values({sums[0] / c.size(), sums[1] / c.size()}, dtype)));
    if (c.size() == 2) CHECK(same_bits(t, values({1.0, 1.75}, dtype)));
  }
  if (c.size() == 2) {
    for (const auto dtype : {at::kLong, at::kFloat, at::kBFloat16}) {
      const Tensor whole = first ? values({1, 2, 3, 4}, dtype) : values({10, 20, 30, 40}, dtype);
      Tensor part = mgfl::zeros({2}, dtype);
      c.reduce_scatter(whole, part, ReduceOp::sum);
      CHECK(same_bits(part, first ? values({11, 22}, dtype) : values({33, 44}, dtype)));
      const std::int64_t counts[] = {1, 3};
      Tensor uneven_part = mgfl::zeros({counts[c.rank()]}, dtype);
      c.reduce_scatter_v(whole, uneven_part, counts, ReduceOp::sum);
      CHECK(same_bits(uneven_part, first ? values({11}, dtype) : values({22, 33, 44}, dtype)));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("sum, max and avg of every dtype at every size", Maker, conform_dtypes) {
  auto c = Maker::make();
  for (const auto dtype : all_dtypes) {
    CAPTURE(c10::toString(dtype));
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      CAPTURE(n);
      for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::avg}) {
        if (op == ReduceOp::avg && !at::isFloatingType(dtype)) continue;
        const auto own = [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); };
        const auto expected = [&](std::int64_t begin) {
          return [=, &c](std::int64_t i) { return reduced(c.size(), begin + i, dtype, op); };
        };
        Tensor t = filled(n, dtype, own);
        c.all_reduce(t, op);
        CHECK(same_bits(t, filled(n, dtype, expected(0))));

        Tensor whole = filled(n * c.size(), dtype, own), part = mgfl::zeros({n}, dtype);
        c.reduce_scatter(whole, part, op);
        CHECK(same_bits(part, filled(n, dtype, expected(n * c.rank()))));
        Tensor share = whole.narrow(0, n * c.rank(), n);
        c.reduce_scatter(whole, share, op);  // where this rank's share lies
        CHECK(same_bits(share, part));

        const auto counts = uneven(n, c.size());
        const std::int64_t rows = counts[static_cast<std::size_t>(c.rank())];
        whole = filled(sum_of(counts, c.size()), dtype, own);
        part = mgfl::zeros({rows}, dtype);
        c.reduce_scatter_v(whole, part, counts, op);
        CHECK(same_bits(part, filled(rows, dtype, expected(sum_of(counts, c.rank())))));
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("16-bit floats are summed in fp32 and rounded once", Maker, conform_rounding) {
  auto c = Maker::make();
  // 256 + 1 + 1 + ... sticks at 256 in bf16, 2048 + 1 + 1 + ... at 2048 in fp16.
  for (const std::int64_t n : sizes<Maker>(c.size(), 2)) {
    CAPTURE(n);
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const double large = dtype == at::kHalf ? 2048 : 256;
      const Tensor own = filled(n, dtype, [&](std::int64_t) { return c.rank() == 0 ? large : 1.0; });
      Tensor t = own.clone();
      c.all_reduce(t, ReduceOp::sum);
      CHECK(same_bits(t, filled(n, dtype, [&](std::int64_t) { return large + c.size() - 1; })));
      t = own.clone();
      c.all_reduce(t, ReduceOp::avg);
      CHECK(same_bits(t, filled(n, dtype, [&](std::int64_t) { return (large + c.size() - 1) / c.size(); })));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("sums run in rank order at every place of every tensor", Maker, conform_order) {
  auto c = Maker::make();
  // In fp32 ((1e8 + 1) - 1e8) + 3 is 3: what is added to a large number is lost, what comes after it has gone
  // is not. Orders that lose other terms give other sums.
  const float terms[] = {1e8f, 1, -1e8f, 3, 2e8f, 5, -2e8f, 2};
  REQUIRE(c.size() <= 8);
  float sum = 0;
  for (int r = 0; r < c.size(); ++r) sum += terms[r];
  for (const std::int64_t n : sizes<Maker>(c.size(), 4)) {
    Tensor t = filled(n, at::kFloat, [&](std::int64_t) { return terms[c.rank()]; });
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, at::kFloat, [&](std::int64_t) { return sum; })));
    const Tensor whole = filled(n * c.size(), at::kFloat, [&](std::int64_t) { return terms[c.rank()]; });
    Tensor part = mgfl::zeros({n}, at::kFloat);
    c.reduce_scatter(whole, part, ReduceOp::avg);
    CHECK(same_bits(part,
                    filled(n, at::kFloat, [&](std::int64_t) { return sum / static_cast<float>(c.size()); })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("every rank and every repeat has the same bits", Maker, conform_bits) {
  auto c = Maker::make();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      Tensor previous;
      for (int repeat = 0; repeat < 3; ++repeat) {
        Tensor t =
            filled(n, dtype, [&](std::int64_t i) { return std::sin(1.0 + 17.0 * i + 3.7 * c.rank()); });
        c.all_reduce(t, ReduceOp::sum);
        if (repeat > 0) CHECK(same_bits(t, previous));
        previous = t;
      }
      Tensor all = mgfl::zeros({c.size(), n}, dtype);
      c.all_gather(previous, all);
      for (int r = 0; r < c.size(); ++r) CHECK(same_bits(all[r], previous));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("infinity and NaN pass, a NaN wins a max", Maker, conform_nan) {
  auto c = Maker::make();
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (int which = 0; which < c.size(); ++which) {
      Tensor t = values({c.rank() == which ? nan : 1, c.rank() == which ? inf : 1}, dtype);
      c.all_reduce(t, ReduceOp::max);
      CHECK(std::isnan(t[0].template item<double>()));
      CHECK(t[1].template item<double>() == inf);
      t = values({c.rank() == which ? -inf : 1}, dtype);
      c.all_reduce(t, ReduceOp::sum);
      CHECK(t[0].template item<double>() == -inf);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("broadcast from every root", Maker, conform_broadcast) {
  auto c = Maker::make();
  for (const auto dtype : all_dtypes)
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype))))
      for (int root = 0; root < c.size(); ++root) {
        Tensor t = filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); });
        c.broadcast(t, root);
        CHECK(same_bits(t, filled(n, dtype, [&](std::int64_t i) { return whole_number(root, i, dtype); })));
      }
}

TEST_CASE_TEMPLATE_DEFINE("all_gather keeps rank order, in place too", Maker, conform_gather) {
  auto c = Maker::make();
  for (const auto dtype : all_dtypes)
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      const Tensor part = filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); });
      const Tensor expected = filled(n * c.size(), dtype, [&](std::int64_t i) {
        return whole_number(static_cast<int>(i / n), i % n, dtype);
      });
      Tensor gathered = mgfl::zeros({c.size(), n}, dtype);
      c.all_gather(part, gathered);
      CHECK(same_bits(gathered, expected));
      gathered = mgfl::zeros({c.size(), n}, dtype);
      gathered[c.rank()].copy_(part);
      c.all_gather(gathered[c.rank()], gathered);
      CHECK(same_bits(gathered, expected));
    }
}

TEST_CASE_TEMPLATE_DEFINE("all_gather_v of uneven rows, of none too", Maker, conform_gather_v) {
  auto c = Maker::make();
  for (const auto dtype : all_dtypes)
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype))))
      for (const std::int64_t width : {1, 3}) {
        const auto counts = uneven(n / width, c.size());
        const std::int64_t rows = counts[static_cast<std::size_t>(c.rank())], all = sum_of(counts, c.size());
        const auto row_of = [&](int r, std::int64_t i) { return whole_number(r, i, dtype); };
        std::vector<double> expected;
        for (int r = 0; r < c.size(); ++r)
          for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(r)] * width; ++i)
            expected.push_back(row_of(r, i));
        const Tensor part = filled(rows * width, dtype, [&](std::int64_t i) {
                              return row_of(c.rank(), i);
                            }).reshape({rows, width});
        Tensor gathered = mgfl::zeros({all, width}, dtype);
        c.all_gather_v(part, gathered, counts);
        const Tensor wanted =
            filled(all * width, dtype, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
        CHECK(same_bits(gathered, wanted));
        gathered = mgfl::zeros({all, width}, dtype);
        Tensor own = gathered.narrow(0, sum_of(counts, c.rank()), rows);
        own.copy_(part);
        c.all_gather_v(own, gathered, counts);  // in place
        CHECK(same_bits(gathered, wanted));
      }
}

TEST_CASE_TEMPLATE_DEFINE("all_to_all, in equal parts and by counts of rows", Maker, conform_all_to_all) {
  auto c = Maker::make();
  // The rows that `from` sends to `to`: unlike both ways, none for some.
  const auto rows_of = [](std::int64_t n, int from, int to) {
    return (from + 2 * to) % 4 == 1 ? 0 : n + from % 3 + 2 * (to % 2);
  };
  for (const auto dtype : all_dtypes)
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      const auto between = [&](std::int64_t i, bool to_others) {
        const int other = static_cast<int>(i / n);
        return to_others ? whole_number(c.rank(), other, i % n, dtype)
                         : whole_number(other, c.rank(), i % n, dtype);
      };
      const Tensor sent = filled(n * c.size(), dtype, [&](std::int64_t i) { return between(i, true); });
      Tensor received = mgfl::zeros({c.size(), n}, dtype);
      c.all_to_all(sent, received);
      CHECK(same_bits(received,
                      filled(n * c.size(), dtype, [&](std::int64_t i) { return between(i, false); })));

      constexpr std::int64_t width = 3;
      std::vector<std::int64_t> to, from;
      std::vector<double> out, in;
      for (int r = 0; r < c.size(); ++r) {
        to.push_back(rows_of(n / width, c.rank(), r));
        from.push_back(rows_of(n / width, r, c.rank()));
        for (std::int64_t i = 0; i < to.back() * width; ++i)
          out.push_back(whole_number(c.rank(), r, i, dtype));
        for (std::int64_t i = 0; i < from.back() * width; ++i)
          in.push_back(whole_number(r, c.rank(), i, dtype));
      }
      const auto rows = [&](const std::vector<double>& list) {
        const auto count = static_cast<std::int64_t>(list.size());
        return filled(count, dtype, [&](std::int64_t i) { return list[static_cast<std::size_t>(i)]; })
            .reshape({count / width, width});
      };
      Tensor rows_in = mgfl::zeros({sum_of(from, c.size()), width}, dtype);
      c.all_to_all_v(rows(out), to, rows_in, from);
      CHECK(same_bits(rows_in, rows(in)));
    }
}

TEST_CASE_TEMPLATE_DEFINE("exchange around a ring, of every dtype at every size", Maker, conform_exchange) {
  auto c = Maker::make();
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  for (const auto dtype : all_dtypes)
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      const Tensor up = filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), 0, i, dtype); }),
                   down =
                       filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), 1, i, dtype); });
      Tensor from_previous = mgfl::zeros({n}, dtype), from_next = mgfl::zeros({n}, dtype);
      // All receive first, which only a grouped call allows.
      const Transfer both_ways[] = {Transfer::receive(from_previous, previous), Transfer::send(up, next),
                                    Transfer::receive(from_next, next), Transfer::send(down, previous)};
      c.exchange(both_ways);
      CHECK(same_bits(from_previous,
                      filled(n, dtype, [&](std::int64_t i) { return whole_number(previous, 0, i, dtype); })));
      // On two ranks both receives are from one: the k-th belongs to its k-th send.
      CHECK(same_bits(from_next,
                      filled(n, dtype, [&](std::int64_t i) { return whole_number(next, 1, i, dtype); })));
    }
}

TEST_CASE_TEMPLATE_DEFINE("transfers of one pair keep their order, to itself too", Maker, conform_pairs) {
  auto c = Maker::make();
  // Of unlike sizes and dtypes, so that one that overtakes another does not fit; all ranks with all.
  const std::int64_t lengths[] = {5, 0, 3001, 1, 70};
  const at::ScalarType dtypes[] = {at::kFloat, at::kLong, at::kBFloat16, at::kBool, at::kDouble};
  std::vector<Tensor> tensors;
  tensors.reserve(static_cast<std::size_t>(10 * c.size()));
  std::vector<Transfer> transfers;
  for (int k = 0; k < 5; ++k)
    for (int r = 0; r < c.size(); ++r) {
      tensors.push_back(filled(lengths[k], dtypes[k],
                               [&](std::int64_t i) { return whole_number(c.rank() + k, r, i, dtypes[k]); }));
      transfers.push_back(Transfer::send(tensors.back(), r));
    }
  for (int r = c.size() - 1; r >= 0; --r)
    for (int k = 0; k < 5; ++k) {
      tensors.push_back(mgfl::zeros({lengths[k]}, dtypes[k]));
      transfers.push_back(Transfer::receive(tensors.back(), r));
    }
  c.exchange(transfers);
  auto received = tensors.begin() + 5 * c.size();
  for (int r = c.size() - 1; r >= 0; --r)
    for (int k = 0; k < 5; ++k)
      CHECK(same_bits(*received++, filled(lengths[k], dtypes[k], [&](std::int64_t i) {
        return whole_number(r + k, c.rank(), i, dtypes[k]);
      })));
  c.exchange({});
}

TEST_CASE_TEMPLATE_DEFINE("send and recv down a chain and back", Maker, conform_send) {
  auto c = Maker::make();
  for (const auto dtype : all_dtypes)
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      // Every rank adds its own in the way down; the last one's tensor comes back unchanged.
      Tensor t = mgfl::zeros({n}, dtype);
      if (c.rank() > 0) c.recv(t, c.rank() - 1);
      const Tensor own = filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); });
      if (dtype == at::kBool)
        t = t.logical_or(own);
      else
        t.add_(own);
      if (c.rank() + 1 < c.size()) {
        c.send(t, c.rank() + 1);
        c.recv(t, c.rank() + 1);
      }
      if (c.rank() > 0) c.send(t, c.rank() - 1);
      CHECK(same_bits(
          t, filled(n, dtype, [&](std::int64_t i) { return reduced(c.size(), i, dtype, ReduceOp::sum); })));
    }
}

TEST_CASE_TEMPLATE_DEFINE("transfers of an exchange do not wait for each other", Maker, conform_apart) {
  auto c = Maker::make();
  // Rank 0 gives and takes in one call; what it takes depends on what it gave, once around.
  for (const std::int64_t n : {std::int64_t{3}, std::int64_t{100'003}}) {
    const Tensor sent = filled(n, at::kFloat, [&](std::int64_t i) { return whole_number(0, i, at::kFloat); });
    Tensor t = mgfl::zeros({n}, at::kFloat);
    if (c.rank() == 0) {
      const Transfer both[] = {Transfer::receive(t, c.size() - 1), Transfer::send(sent, 1 % c.size())};
      c.exchange(both);
    } else {
      c.recv(t, c.rank() - 1);
      c.send(t, (c.rank() + 1) % c.size());
    }
    CHECK(same_bits(t, sent));
  }
}

TEST_CASE_TEMPLATE_DEFINE("no rank leaves a barrier before all have entered", Maker, conform_barrier) {
  auto c = Maker::make();
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (int late = 0; late < c.size(); ++late) {
    if (c.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const double entered = seconds();
    c.barrier();
    const double left = seconds();
    CHECK(left >= c.all_reduce_value(entered, ReduceOp::max));
  }
}

TEST_CASE_TEMPLATE_DEFINE("single values", Maker, conform_values) {
  auto c = Maker::make();
  const std::int64_t big = (std::int64_t{1} << 53) + 1;  // not exact in fp64
  CHECK(c.all_reduce_value(c.rank() == 0 ? big : 0, ReduceOp::sum) == big);
  CHECK(c.all_reduce_value(std::int64_t{-7} - c.rank(), ReduceOp::max) == -7);
  CHECK(c.all_reduce_value(0.5 + c.rank(), ReduceOp::sum) == 0.5 * c.size() + c.size() * (c.size() - 1) / 2);
  CHECK(c.all_reduce_value(0.5 + c.rank(), ReduceOp::max) == c.size() - 0.5);
  CHECK(c.all_reduce_value(1.0 + c.rank(), ReduceOp::avg) == (c.size() + 1) / 2.0);
}

TEST_CASE_TEMPLATE_DEFINE("split into groups", Maker, conform_split) {
  auto c = Maker::make();
  for (int repeat = 0; repeat < 70; ++repeat) {
    auto half = c.split(c.rank() % 2, -c.rank(), "half");
    const int members = (c.size() + (c.rank() % 2 == 0)) / 2;
    CHECK(half.size() == members);
    CHECK(half.rank() == members - 1 - c.rank() / 2);
    std::int64_t expected = 0;
    for (int r = c.rank() % 2; r < c.size(); r += 2) expected += r;
    CHECK(half.all_reduce_value(static_cast<std::int64_t>(c.rank()), ReduceOp::sum) == expected);
    if (repeat > 2) continue;
    auto alone = half.split(half.rank(), 0);
    CHECK(alone.size() == 1);
    Tensor t = values({c.rank() + 1.0}, at::kFloat);
    alone.all_reduce(t, ReduceOp::sum);
    CHECK(t[0].template item<float>() == c.rank() + 1.0f);
  }
}

TEST_CASE_TEMPLATE_DEFINE("every operation in a group with reversed ranks, and in its half", Maker,
                          conform_reversed) {
  auto c = Maker::make();
  auto reversed = c.split(0, -c.rank(), "reversed");
  auto half = reversed.split(reversed.rank() % 2, reversed.rank(), "half of it");
  for (auto* g : {&reversed, &half, &c}) {  // in turns, so that one must not disturb the next
    const int rank = g->rank(), size = g->size();
    CAPTURE(size);
    const std::int64_t n = 40'009;  // a prime, several rounds for small stages
    const auto dtype = at::kFloat;
    const auto own = [&](std::int64_t i) { return whole_number(rank, i, dtype); };
    const auto sum = [&](std::int64_t i) { return reduced(size, i, dtype, ReduceOp::sum); };
    Tensor t = filled(n, dtype, own);
    g->all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, dtype, sum)));
    const auto counts = uneven(n / size, size);
    const std::int64_t rows = counts[static_cast<std::size_t>(rank)], begin = sum_of(counts, rank),
                       all = sum_of(counts, size);
    Tensor part = mgfl::zeros({rows}, dtype), gathered = mgfl::zeros({all}, dtype);
    g->reduce_scatter_v(filled(all, dtype, own), part, counts, ReduceOp::sum);
    CHECK(same_bits(part, filled(rows, dtype, [&](std::int64_t i) { return sum(begin + i); })));
    g->all_gather_v(part, gathered, counts);
    CHECK(same_bits(gathered, filled(all, dtype, sum)));
    t = filled(n, dtype, own);
    g->broadcast(t, size - 1);
    CHECK(same_bits(t, filled(n, dtype, [&](std::int64_t i) { return whole_number(size - 1, i, dtype); })));
    Tensor received = mgfl::zeros({size}, dtype);
    g->all_to_all(filled(size, dtype, [&](std::int64_t i) { return 10.0 * rank + static_cast<double>(i); }),
                  received);
    CHECK(same_bits(
        received, filled(size, dtype, [&](std::int64_t i) { return 10.0 * static_cast<double>(i) + rank; })));
    const Tensor sent = filled(n, dtype, own);
    t = mgfl::zeros({n}, dtype);
    const Transfer around[] = {Transfer::send(sent, (rank + 1) % size),
                               Transfer::receive(t, (rank + size - 1) % size)};
    g->exchange(around);
    CHECK(same_bits(t, filled(n, dtype, [&](std::int64_t i) {
                      return whole_number((rank + size - 1) % size, i, dtype);
                    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("a wrong call is refused on every rank, and the next one works", Maker,
                          conform_wrong) {
  auto c = Maker::make();
  Tensor good = mgfl::zeros({2, 3}, at::kFloat), strided = good.t(),
         complex = mgfl::zeros({2}, at::kComplexFloat), none;
  Tensor row = mgfl::zeros({3}, at::kFloat);
  CHECK_THROWS_WITH_AS(c.all_reduce(strided, ReduceOp::sum), doctest::Contains("contiguous"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.broadcast(strided, 0), doctest::Contains("contiguous"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_reduce(complex, ReduceOp::sum), doctest::Contains("dtype"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_reduce(none, ReduceOp::sum), doctest::Contains("undefined"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.broadcast(good, c.size()), doctest::Contains("root"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.broadcast(good, -1), doctest::Contains("root"), mgfl::RunError);
  Tensor small = mgfl::zeros({2}, at::kFloat), other = mgfl::zeros({c.size(), 3}, at::kDouble);
  CHECK_THROWS_WITH_AS(c.all_gather(row, small), doctest::Contains("do not fit"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_gather(row, other), doctest::Contains("do not fit"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.reduce_scatter(row, small, ReduceOp::sum), doctest::Contains("do not fit"),
                       mgfl::RunError);
  CHECK_THROWS_WITH_AS((void)c.split(-1, 0), doctest::Contains("color"), mgfl::RunError);

  // Averages of what has none.
  for (const auto dtype : {at::kLong, at::kInt, at::kByte, at::kBool}) {
    Tensor whole = mgfl::zeros({c.size()}, dtype), part = mgfl::zeros({1}, dtype);
    CHECK_THROWS_WITH_AS(c.all_reduce(whole, ReduceOp::avg), doctest::Contains("has no average"),
                         mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.reduce_scatter(whole, part, ReduceOp::avg), doctest::Contains("has no average"),
                         mgfl::RunError);
  }
  CHECK_THROWS_WITH_AS(c.all_reduce_value(std::int64_t{1}, ReduceOp::avg),
                       doctest::Contains("has no average"), mgfl::RunError);

  // Counts and rows.
  const auto size = static_cast<std::size_t>(c.size());
  const std::vector<std::int64_t> ones(size, 1), few(size - 1, 1), many(size + 1, 1), negative(size, -1),
      huge(size, 3);
  Tensor rows = mgfl::zeros({c.size(), 4}, at::kFloat), result = mgfl::zeros({c.size(), 4}, at::kFloat),
         one = mgfl::zeros({1, 4}, at::kFloat), wide = mgfl::zeros({1, 5}, at::kFloat),
         ints = mgfl::zeros({1, 4}, at::kInt), scalar = mgfl::zeros({}, at::kFloat);
  for (const auto& wrong : {few, many, negative}) {
    CHECK_THROWS_WITH_AS(c.all_gather_v(one, rows, wrong), doctest::Contains("its counts are"),
                         mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.reduce_scatter_v(rows, one, wrong, ReduceOp::sum),
                         doctest::Contains("its counts are"), mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.all_to_all_v(rows, ones, result, wrong), doctest::Contains("its counts are"),
                         mgfl::RunError);
  }
  for (Tensor* wrong : {&wide, &ints, &scalar}) {
    CHECK_THROWS_WITH_AS(c.all_gather_v(*wrong, rows, ones), doctest::Contains("do not fit"), mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.reduce_scatter_v(rows, *wrong, ones, ReduceOp::sum),
                         doctest::Contains("do not fit"), mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.all_to_all_v(rows, ones, *wrong, ones), doctest::Contains("do not fit"),
                         mgfl::RunError);
  }
  CHECK_THROWS_WITH_AS(c.all_to_all_v(rows, huge, result, ones), doctest::Contains("do not fit"),
                       mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_to_all_v(rows, ones, rows, ones), doctest::Contains("overlap"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_to_all(rows, rows), doctest::Contains("overlap"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_to_all(rows, other), doctest::Contains("do not fit"), mgfl::RunError);
  Tensor flat = mgfl::zeros({2 * c.size()}, at::kFloat), aslant = flat.narrow(0, c.size() > 1 ? 1 : 0, 2);
  if (c.size() > 1)
    CHECK_THROWS_WITH_AS(c.reduce_scatter(flat, aslant, ReduceOp::sum), doctest::Contains("overlap"),
                         mgfl::RunError);

  // Transfers: a peer that is none, one with itself alone.
  for (const int peer : {-1, c.size()}) {
    CHECK_THROWS_WITH_AS(c.send(row, peer), doctest::Contains("its peer is not a rank"), mgfl::RunError);
    CHECK_THROWS_WITH_AS(c.recv(row, peer), doctest::Contains("its peer is not a rank"), mgfl::RunError);
  }
  CHECK_THROWS_WITH_AS(c.send(row, c.rank()), doctest::Contains("itself"), mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.recv(row, c.rank()), doctest::Contains("itself"), mgfl::RunError);
  for (Tensor* wrong : {&small, &strided, &complex, &none, &other}) {
    const Transfer misfit[] = {Transfer::send(row, (c.rank() + 1) % c.size()),
                               Transfer::receive(*wrong, (c.rank() + c.size() - 1) % c.size())};
    CHECK_THROWS_AS(c.exchange(misfit), mgfl::RunError);
  }
  Tensor t = values({1}, at::kFloat);
  c.all_reduce(t, ReduceOp::sum);
  CHECK(t[0].template item<float>() == c.size());
}

}  // namespace mgfl_test

/// Runs the suite for each of the makers; use it in namespace mgfl_test.
#define MGFL_CONFORMANCE(...)                                 \
  TEST_CASE_TEMPLATE_INVOKE(conform_known, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(conform_dtypes, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(conform_rounding, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(conform_order, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(conform_bits, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(conform_nan, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(conform_broadcast, __VA_ARGS__);  \
  TEST_CASE_TEMPLATE_INVOKE(conform_gather, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(conform_gather_v, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(conform_all_to_all, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(conform_exchange, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(conform_pairs, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(conform_send, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(conform_apart, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(conform_barrier, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(conform_values, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(conform_split, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(conform_reversed, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(conform_wrong, __VA_ARGS__);
