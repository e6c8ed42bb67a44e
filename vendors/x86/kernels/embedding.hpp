/// Embedding rows copied and accumulated by all threads for x86-64; what the kernels compute is said in
/// policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::embedding, vendors::x86> : overrides<targets::embedding, vendors::x86> {
  static void call(const Tensor& ids, const Tensor& w, std::int64_t first_row, Tensor& out);
};

template <>
struct implementation<targets::embedding_backward, vendors::x86>
    : overrides<targets::embedding_backward, vendors::x86> {
  static void call(const Tensor& ids, const Tensor& dout, std::int64_t first_row, Tensor& main_grad);
};

}  // namespace mgfl
