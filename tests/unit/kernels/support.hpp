/// Random tensors, double-precision views of them and comparisons, shared by the tests of the compute
/// kernels.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/doctest.hpp"

#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels_decl.hpp"

namespace kernel_tests {

using mgfl::Tensor;
using numbers = std::vector<double>;

/// The kernel body under test.
template <class Target>
inline constexpr auto original = mgfl::implementation<Target, mgfl::vendors::original>::call;

/// A compute dtype, its main dtype, and how far one rounding (16 bit) or a short sum may be off, relative to
/// 1 + |value|.
struct DtypeCase {
  at::ScalarType d, m;
  double tolerance;
};
inline constexpr std::array<DtypeCase, 4> dtype_cases{{{at::kDouble, at::kDouble, 1e-13},
                                                       {at::kFloat, at::kFloat, 3e-6},
                                                       {at::kBFloat16, at::kFloat, 4e-3},
                                                       {at::kHalf, at::kFloat, 6e-4}}};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  double normal() { return std::normal_distribution<double>()(engine_); }
  std::int64_t below(std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(engine_);
  }

  /// Normal numbers, rounded to dtype.
  Tensor tensor(std::vector<std::int64_t> shape, at::ScalarType dtype, double mean = 0,
                double deviation = 1) {
    Tensor t = mgfl::empty(shape, at::kDouble);
    for (std::int64_t i = 0; i < t.numel(); ++i) t.data_ptr<double>()[i] = mean + deviation * normal();
    return t.to(dtype);
  }

 private:
  std::mt19937 engine_;
};

inline numbers values(const Tensor& t) {
  const Tensor wide = t.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

template <class T>
Tensor integers(const std::vector<T>& from) {
  Tensor t = mgfl::empty({static_cast<std::int64_t>(from.size())}, sizeof(T) == 4 ? at::kInt : at::kLong);
  if (!from.empty()) std::memcpy(t.data_ptr(), from.data(), from.size() * sizeof(T));
  return t;
}

/// Largest |got - expected| / (1 + |expected|); infinity where sizes differ or a number is NaN.
inline double distance(const numbers& got, const numbers& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i]));
    worst = off <= worst ? worst : std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
  }
  return worst;
}
inline double distance(const Tensor& got, const numbers& expected) { return distance(values(got), expected); }
inline double distance(const Tensor& got, const Tensor& expected) {
  return distance(values(got), values(expected));
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.nbytes() == y.nbytes() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

/// sum of weight * value: a scalar loss whose gradient with respect to the values is `weight`.
inline double weighted_sum(const Tensor& t, const Tensor& weight) {
  return t.mul(weight).sum().item<double>();
}

/// Central differences of loss() by every element of an fp64 tensor that loss() reads.
template <class Loss>
numbers numeric_gradient(const Tensor& input, Loss loss, double h = 1e-5) {
  numbers gradient;
  for (std::int64_t i = 0; i < input.numel(); ++i) {
    double& x = input.data_ptr<double>()[i];
    const double at = x;
    x = at + h;
    const double above = loss();
    x = at - h;
    const double below = loss();
    x = at;
    gradient.push_back((above - below) / (2 * h));
  }
  return gradient;
}
inline constexpr double difference_tolerance = 2e-8;

}  // namespace kernel_tests
