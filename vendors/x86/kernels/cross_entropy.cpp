#include "vendors/x86/kernels/cross_entropy.hpp"

#include "vendors/x86/run.h"

namespace mgfl {

void implementation<targets::vocab_row_statistics, vendors::x86>::call(
    const Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
    Tensor& largest, Tensor& sum_exp, Tensor& sum_exp_z, Tensor& predicted) {
  const bool done =
      labels.is_contiguous() && logits.size(1) > 0 &&
      x86::run({{logits}, {scale, largest, sum_exp, sum_exp_z, predicted}}, [&]<class D>(D) {
        x86::vocab_row_statistics(x86::in<D>(logits), x86::in<std::int64_t>(labels), x86::in<float>(scale),
                                  first_column, x86::out<float>(largest), x86::out<float>(sum_exp),
                                  x86::out<float>(sum_exp_z), x86::out<float>(predicted), logits.size(0),
                                  logits.size(1), num_threads());
      });
  if (!done)
    implementation<targets::vocab_row_statistics, vendors::original>::call(
        logits, labels, scale, first_column, largest, sum_exp, sum_exp_z, predicted);
}

void implementation<targets::vocab_rows_backward, vendors::x86>::call(
    Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column, const Tensor& lse,
    const Tensor& entropy, const Tensor& d_log_prob, const Tensor& d_entropy) {
  const bool done =
      labels.is_contiguous() && logits.size(1) > 0 &&
      x86::run({{logits}, {scale, lse, entropy, d_log_prob, d_entropy}}, [&]<class D>(D) {
        x86::vocab_rows_backward(x86::out<D>(logits), x86::in<std::int64_t>(labels), x86::in<float>(scale),
                                 first_column, x86::in<float>(lse), x86::in<float>(entropy),
                                 x86::in<float>(d_log_prob), x86::in<float>(d_entropy), logits.size(0),
                                 logits.size(1), num_threads());
      });
  if (!done)
    implementation<targets::vocab_rows_backward, vendors::original>::call(
        logits, labels, scale, first_column, lse, entropy, d_log_prob, d_entropy);
}

}  // namespace mgfl
