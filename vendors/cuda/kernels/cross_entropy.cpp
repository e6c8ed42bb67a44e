#include "vendors/cuda/kernels/cross_entropy.hpp"

#include "vendors/cuda/operations/vocabulary.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

void implementation<targets::vocab_row_statistics, vendors::cuda>::call(
    const Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
    Tensor& largest, Tensor& sum_exp, Tensor& sum_exp_z, Tensor& predicted) {
  const bool done =
      cuda::run("vocab_row_statistics", {{logits}, {scale, largest, sum_exp, sum_exp_z, predicted}, {labels}},
                [&]<class D>(D) {
                  using M = cuda::main_of<D>;
                  return cuda::VocabRowStatistics<D>{cuda::in<D>(logits),     cuda::in<std::int64_t>(labels),
                                                     cuda::in<M>(scale),      first_column,
                                                     cuda::out<M>(largest),   cuda::out<M>(sum_exp),
                                                     cuda::out<M>(sum_exp_z), cuda::out<M>(predicted),
                                                     logits.size(0),          logits.size(1)};
                });
  if (!done)
    implementation<targets::vocab_row_statistics, vendors::original>::call(
        logits, labels, scale, first_column, largest, sum_exp, sum_exp_z, predicted);
}

void implementation<targets::vocab_rows_backward, vendors::cuda>::call(
    Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column, const Tensor& lse,
    const Tensor& entropy, const Tensor& d_log_prob, const Tensor& d_entropy) {
  const bool done =
      cuda::run("vocab_rows_backward", {{logits}, {scale, lse, entropy, d_log_prob, d_entropy}, {labels}},
                [&]<class D>(D) {
                  using M = cuda::main_of<D>;
                  return cuda::VocabRowsBackward<D>{cuda::out<D>(logits),    cuda::in<std::int64_t>(labels),
                                                    cuda::in<M>(scale),      first_column,
                                                    cuda::in<M>(lse),        cuda::in<M>(entropy),
                                                    cuda::in<M>(d_log_prob), cuda::in<M>(d_entropy),
                                                    logits.size(0),          logits.size(1)};
                });
  if (!done)
    implementation<targets::vocab_rows_backward, vendors::original>::call(
        logits, labels, scale, first_column, lse, entropy, d_log_prob, d_entropy);
}

}  // namespace mgfl
