/// What every communicator must do, whatever its model and size: the same bodies run for Self and for Mpi.
#pragma once

#include "tests/support/doctest.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
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

/// Sizes in elements on both sides of every border.
template <class Maker>
std::vector<std::int64_t> sizes(int ranks, std::int64_t element_bytes) {
  std::vector<std::int64_t> result{0, 1, 2, 3, 17};
  for (const std::int64_t bytes : Maker::borders(ranks))
    for (const std::int64_t delta : {-1, 0, 1}) result.push_back(bytes / element_bytes + delta);
  return result;
}

TEST_CASE_TEMPLATE_DEFINE("known sums, averages and shares", Maker, conform_known) {
  auto c = Maker::make();
  const bool first = c.rank() % 2 == 0;
  const double pairs = c.size() / 2.0;  // ranks in turn hold one of two tensors
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    Tensor t = c.size() == 1 ? values({2.0, 3.5}, dtype)
               : first       ? values({1.5, 2.5}, dtype)
                             : values({0.5, 1.0}, dtype);
    c.all_reduce(t, ReduceOp::sum);
    const double times = c.size() == 1 ? 1 : pairs;
    CHECK(same_bits(t, values({2.0 * times, 3.5 * times}, dtype)));
    t.div_(2.0 * times);
    CHECK(same_bits(t, values({1.0, 1.75}, dtype)));
  }
  if (c.size() == 2) {
    for (const auto dtype : {at::kLong, at::kFloat, at::kBFloat16}) {
      const Tensor whole = first ? values({1, 2, 3, 4}, dtype) : values({10, 20, 30, 40}, dtype);
      Tensor part = mgfl::zeros({2}, dtype);
      c.reduce_scatter(whole, part, ReduceOp::sum);
      CHECK(same_bits(part, first ? values({11, 22}, dtype) : values({33, 44}, dtype)));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("sum and max of every dtype at every size", Maker, conform_dtypes) {
  auto c = Maker::make();
  for (const auto dtype : all_dtypes) {
    CAPTURE(c10::toString(dtype));
    for (const std::int64_t n : sizes<Maker>(c.size(), static_cast<std::int64_t>(c10::elementSize(dtype)))) {
      CAPTURE(n);
      for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
        const auto expected = [&](std::int64_t i) {
          double result = whole_number(0, i, dtype);
          for (int r = 1; r < c.size(); ++r) {
            const double other = whole_number(r, i, dtype);
            result = op == ReduceOp::sum && dtype != at::kBool ? result + other : std::max(result, other);
          }
          return result;
        };
        Tensor t = filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); });
        c.all_reduce(t, op);
        CHECK(same_bits(t, filled(n, dtype, expected)));

        const Tensor whole =
            filled(n * c.size(), dtype, [&](std::int64_t i) { return whole_number(c.rank(), i, dtype); });
        Tensor part = mgfl::zeros({n}, dtype);
        c.reduce_scatter(whole, part, op);
        CHECK(same_bits(part, filled(n, dtype, [&](std::int64_t i) { return expected(i + n * c.rank()); })));
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("16-bit floats are summed in fp32 and rounded once", Maker, conform_rounding) {
  auto c = Maker::make();
  // 256 + 1 + 1 + ... sticks at 256 in bf16, 2048 + 1 + 1 + ... at 2048 in fp16.
  const double bf16[] = {256, 256, 258, 260}, fp16[] = {2048, 2048, 2050, 2052};
  REQUIRE(c.size() <= 4);
  for (const std::int64_t n : sizes<Maker>(c.size(), 2)) {
    CAPTURE(n);
    Tensor t = filled(n, at::kBFloat16, [&](std::int64_t) { return c.rank() == 0 ? 256.0 : 1.0; });
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, at::kBFloat16, [&](std::int64_t) { return bf16[c.size() - 1]; })));
    t = filled(n, at::kHalf, [&](std::int64_t) { return c.rank() == 0 ? 2048.0 : 1.0; });
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, at::kHalf, [&](std::int64_t) { return fp16[c.size() - 1]; })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("sums run in rank order at every place of every tensor", Maker, conform_order) {
  auto c = Maker::make();
  // In fp32 ((1e8 + 1) - 1e8) + 1 is 1; every other order gives another sum.
  const double terms[] = {1e8, 1, -1e8, 1}, sums[] = {1e8, 1e8, 0, 1};
  REQUIRE(c.size() <= 4);
  for (const std::int64_t n : sizes<Maker>(c.size(), 4)) {
    Tensor t = filled(n, at::kFloat, [&](std::int64_t) { return terms[c.rank()]; });
    c.all_reduce(t, ReduceOp::sum);
    CHECK(same_bits(t, filled(n, at::kFloat, [&](std::int64_t) { return sums[c.size() - 1]; })));
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
}

TEST_CASE_TEMPLATE_DEFINE("split into groups", Maker, conform_split) {
  auto c = Maker::make();
  for (int repeat = 0; repeat < 70; ++repeat) {
    auto half = c.split(c.rank() % 2, -c.rank(), "half");
    const int members = c.size() == 1 ? 1 : c.size() / 2;
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
  Tensor t = values({1}, at::kFloat);
  c.all_reduce(t, ReduceOp::sum);
  CHECK(t[0].template item<float>() == c.size());
}

}  // namespace mgfl_test

/// Runs the suite for each of the makers; use it in namespace mgfl_test.
#define MGFL_CONFORMANCE(...)                                \
  TEST_CASE_TEMPLATE_INVOKE(conform_known, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(conform_dtypes, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(conform_rounding, __VA_ARGS__);  \
  TEST_CASE_TEMPLATE_INVOKE(conform_order, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(conform_bits, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(conform_nan, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(conform_broadcast, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(conform_gather, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(conform_barrier, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(conform_values, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(conform_split, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(conform_wrong, __VA_ARGS__);
