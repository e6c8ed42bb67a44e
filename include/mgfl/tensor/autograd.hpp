/// LibTorch's autograd, between the tensors that a loss closure sees and its result.
#pragma once

#include <vector>

#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// A detached copy of `values` that records what is computed from it.
Tensor make_leaf(const Tensor& values);

/// d loss / d leaf for each leaf; zeros where the loss does not depend on it. Frees the graph.
std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& leaves);

/// Switches autograd on in this thread, for its lifetime.
class GradGuard {
 public:
  GradGuard();
  ~GradGuard();
  GradGuard(const GradGuard&) = delete;
  GradGuard& operator=(const GradGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace mgfl
