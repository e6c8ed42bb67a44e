/// Vocabulary rows for NVIDIA GPUs; what the kernels compute is said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/cuda/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::vocab_row_statistics, vendors::cuda>
    : overrides<targets::vocab_row_statistics, vendors::cuda> {
  static void call(const Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
                   Tensor& largest, Tensor& sum_exp, Tensor& sum_exp_z, Tensor& predicted);
};

template <>
struct implementation<targets::vocab_rows_backward, vendors::cuda>
    : overrides<targets::vocab_rows_backward, vendors::cuda> {
  static void call(Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
                   const Tensor& lse, const Tensor& entropy, const Tensor& d_log_prob,
                   const Tensor& d_entropy);
};

}  // namespace mgfl
