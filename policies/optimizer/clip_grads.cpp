#include "policies/optimizer/clip_grads_decl.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::optimizer {

namespace {

constexpr std::int64_t chunk = 65536;  // elements a partial sum covers, whatever the number of threads
constexpr int lanes =
    16;  // independent accumulators, so that the compiler may use vectors without reordering

/// Folds `term` over elements [first, last) in a fixed order.
template <class Scalar, class Term>
double fold_sum(const Scalar* data, std::int64_t count, Term term) {
  double partial[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) partial[lane] += term(static_cast<double>(data[i + lane]));
  for (int lane = 0; i < count; ++i, ++lane) partial[lane] += term(static_cast<double>(data[i]));
  double sum = 0;
  for (const double value : partial) sum += value;
  return sum;
}

/// Largest magnitude; NaN counts as infinity, since a maximum over ranks need not keep NaN.
template <class Scalar>
double fold_max(const Scalar* data, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double magnitude = std::abs(static_cast<double>(data[i]));
    largest = magnitude <= largest ? largest : magnitude;  // a NaN replaces, and is replaced by nothing
    if (largest != largest) return std::numeric_limits<double>::infinity();
  }
  return largest;
}

template <class Scalar>
double tensor_power(const Tensor& tensor, double norm_type) {
  const Tensor dense = tensor.contiguous();
  const Scalar* data = dense.const_data_ptr<Scalar>();
  const std::int64_t count = dense.numel(), chunks = (count + chunk - 1) / chunk;
  std::vector<double> partial(static_cast<std::size_t>(chunks));
#pragma omp parallel for schedule(static) if (chunks > 1)
  for (std::int64_t c = 0; c < chunks; ++c) {
    const Scalar* begin = data + c * chunk;
    const std::int64_t size = std::min(chunk, count - c * chunk);
    double& result = partial[static_cast<std::size_t>(c)];
    if (norm_type == 2.0)
      result = fold_sum(begin, size, [](double g) { return g * g; });
    else if (norm_type == 1.0)
      result = fold_sum(begin, size, [](double g) { return std::abs(g); });
    else if (std::isinf(norm_type))
      result = fold_max(begin, size);
    else
      result = fold_sum(begin, size, [norm_type](double g) { return std::pow(std::abs(g), norm_type); });
  }
  double total = 0;
  for (const double value : partial) total = std::isinf(norm_type) ? std::max(total, value) : total + value;
  return total;
}

}  // namespace

double local_norm_power(const std::span<const Tensor>& grads, double norm_type) {
  check_user(norm_type > 0, "get_grad_norm_fp32: norm_type is ", norm_type,
             "; give 2, another p > 0, or infinity");
  double total = 0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const Tensor& grad = grads[i];
    check_user(grad.defined(), "get_grad_norm_fp32: grads_for_norm[", i, "] of ", grads.size(),
               " is undefined; leave parameters without a gradient out of the list");
    check_user(grad.device().is_cpu(), "get_grad_norm_fp32: grads_for_norm[", i, "] lies on ",
               grad.device().str(), "; this implementation reads CPU memory");
    double power = 0;
    switch (grad.scalar_type()) {
      case at::kDouble:
        power = tensor_power<double>(grad, norm_type);
        break;
      case at::kFloat:
        power = tensor_power<float>(grad, norm_type);
        break;
      case at::kBFloat16:
        power = tensor_power<at::BFloat16>(grad, norm_type);
        break;
      case at::kHalf:
        power = tensor_power<at::Half>(grad, norm_type);
        break;
      default:
        throw UserError(concat("get_grad_norm_fp32: grads_for_norm[", i, "] has dtype ",
                               c10::toString(grad.scalar_type()),
                               "; expected Float, Double, BFloat16 or Half"));
    }
    total = std::isinf(norm_type) ? std::max(total, power) : total + power;
  }
  return total;
}

double all_reduce_scalar(double value, function_ref<void(Tensor&)> all_reduce) {
  Tensor scalar = empty({1}, at::kDouble);
  *scalar.mutable_data_ptr<double>() = value;
  all_reduce(scalar);
  return *scalar.const_data_ptr<double>();
}

double norm_from_power(double total, double norm_type) {
  if (std::isinf(norm_type) || norm_type == 1.0) return total;
  return norm_type == 2.0 ? std::sqrt(total) : std::pow(total, 1.0 / norm_type);
}

ReduceOp norm_reduce_op(double norm_type) { return std::isinf(norm_type) ? ReduceOp::max : ReduceOp::sum; }

}  // namespace mgfl::optimizer
