/// Embedding rows and their gradient for NVIDIA GPUs; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::embedding, vendors::cuda> : overrides<targets::embedding, vendors::cuda> {
  static void call(const Tensor& ids, const Tensor& w, std::int64_t first_row, Tensor& out);
};

template <>
struct implementation<targets::embedding_backward, vendors::cuda>
    : overrides<targets::embedding_backward, vendors::cuda> {
  static void call(const Tensor& ids, const Tensor& dout, std::int64_t first_row, Tensor& main_grad);
};

}  // namespace mgfl
