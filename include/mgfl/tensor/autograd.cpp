#include "mgfl/tensor/autograd.hpp"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace mgfl {

Tensor make_leaf(const Tensor& values) { return values.detach().clone().requires_grad_(true); }

std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& leaves) {
  if (!loss.requires_grad()) {
    std::vector<Tensor> none;
    for (const auto& leaf : leaves) none.push_back(leaf.detach().clone().zero_());
    return none;
  }
  auto grads = torch::autograd::grad({loss}, leaves, {}, c10::nullopt, false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (!grads[i].defined()) grads[i] = leaves[i].detach().clone().zero_();
  return grads;
}

GradGuard::GradGuard() : previous_(c10::GradMode::is_enabled()) { c10::GradMode::set_enabled(true); }

GradGuard::~GradGuard() { c10::GradMode::set_enabled(previous_); }

}  // namespace mgfl
