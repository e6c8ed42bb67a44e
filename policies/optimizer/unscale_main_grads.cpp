#include "policies/optimizer/unscale_main_grads_decl.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::optimizer {

namespace {

template <class Scalar>
bool unscale(const Tensor& grad, double inv_scale) {
  using Wide = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;
  Scalar* data = grad.mutable_data_ptr<Scalar>();
  const std::int64_t count = grad.numel();
  const auto factor = static_cast<Wide>(inv_scale);
  int found = 0;
#pragma omp parallel for schedule(static) reduction(| : found) if (count > 65536)
  for (std::int64_t i = 0; i < count; ++i) {
    const Scalar scaled = static_cast<Scalar>(static_cast<Wide>(data[i]) * factor);
    data[i] = scaled;
    found |=
        !(std::abs(static_cast<Wide>(scaled)) <= std::numeric_limits<Wide>::max());  // inf and NaN stay so
  }
  return found != 0;
}

}  // namespace

bool unscale_and_find_nonfinite(const std::span<const Tensor>& main_grads, double inv_scale) {
  check_run(std::isfinite(inv_scale) && inv_scale > 0,
            "_unscale_main_grads_and_check_for_nan: 1 / loss scale is ", inv_scale,
            "; it must be a positive number");
  bool found = false;
  for (std::size_t i = 0; i < main_grads.size(); ++i) {
    const Tensor& grad = main_grads[i];
    check_run(grad.defined() && grad.device().is_cpu() && grad.is_contiguous(),
              "_unscale_main_grads_and_check_for_nan: main gradient ", i, " of ", main_grads.size(),
              " is not a contiguous CPU tensor");
    switch (grad.scalar_type()) {
      case at::kDouble:
        found |= unscale<double>(grad, inv_scale);
        break;
      case at::kFloat:
        found |= unscale<float>(grad, inv_scale);
        break;
      case at::kBFloat16:
        found |= unscale<at::BFloat16>(grad, inv_scale);
        break;
      case at::kHalf:
        found |= unscale<at::Half>(grad, inv_scale);
        break;
      default:
        throw RunError(concat("_unscale_main_grads_and_check_for_nan: main gradient ", i, " has dtype ",
                              c10::toString(grad.scalar_type()),
                              "; expected Float, Double, BFloat16 or Half"));
    }
  }
  return found;
}

}  // namespace mgfl::optimizer
