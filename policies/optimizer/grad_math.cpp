#include "policies/optimizer/grad_math.hpp"

#include <cmath>

#include "mgfl/tensor/lean.hpp"

namespace mgfl::optimizer {

namespace {

template <class T>
bool scale_and_check(T* grads, std::int64_t n, T factor) {
  // x - x is 0 for finite x and NaN for the rest; a sum of zeros stays 0 whatever its order.
  T poison = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : poison)
  for (std::int64_t i = 0; i < n; ++i) {
    poison += grads[i] - grads[i];
    grads[i] *= factor;
  }
  return poison == 0;
}

template <class T>
std::int64_t zeros_in(const T* grads, std::int64_t n) {
  std::int64_t zeros = 0;
#pragma omp parallel for schedule(static) reduction(+ : zeros)
  for (std::int64_t i = 0; i < n; ++i) zeros += grads[i] == 0;
  return zeros;
}

}  // namespace

bool scale_and_check_finite(Tensor& grads, double factor) {
  if (grads.scalar_type() == at::kDouble) return scale_and_check(grads.data_ptr<double>(), grads.numel(), factor);
  return scale_and_check(grads.data_ptr<float>(), grads.numel(), static_cast<float>(factor));
}

std::int64_t count_zeros(const Tensor& grads) {
  if (grads.scalar_type() == at::kDouble) return zeros_in(grads.const_data_ptr<double>(), grads.numel());
  return zeros_in(grads.const_data_ptr<float>(), grads.numel());
}

}  // namespace mgfl::optimizer
