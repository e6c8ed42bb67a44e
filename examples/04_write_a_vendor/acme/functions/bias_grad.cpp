#include "bias_grad.hpp"

#include "mgfl/tensor/lean.hpp"

void mgfl::implementation<mgfl::targets::bias_grad, mgfl::vendors::acme>::call(const Tensor& dy,
                                                                               Tensor& main_grad) {
  main_grad.add_(dy.sum({0}, /*keepdim=*/false, at::kDouble));
}
