#include "policies/kernels/kernels_decl.hpp"

#include <ATen/core/Tensor.h>

#include <limits>

#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace {

/// Where each row's label lies among the columns held here.
struct LabelColumns {
  Tensor column;    // [rows, 1] int64, always a column that exists
  Tensor not_held;  // [rows, 1] bool
};

LabelColumns label_columns(const Tensor& labels, std::int64_t first_column, std::int64_t columns) {
  const Tensor column = labels.sub(first_column).unsqueeze(1);
  return {column.clamp(0, columns - 1), column.lt(0).logical_or(column.ge(columns))};
}

/// e * factor, and 0 where e is 0: the limit of e^z z for z -> -inf, which floating point calls NaN.
Tensor vanishing_product(const Tensor& e, const Tensor& factor) {
  return e.mul(factor).masked_fill_(e.eq(0), 0);
}

}  // namespace

void implementation<targets::vocab_row_statistics, vendors::original>::call(
    const Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
    Tensor& largest, Tensor& sum_exp, Tensor& sum_exp_z, Tensor& predicted) {
  const auto m = kernels::main_dtype(logits.scalar_type());
  const double lowest =
      m == at::kDouble ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
  const std::int64_t columns = logits.size(1);
  if (columns == 0) {
    largest.fill_(lowest);
    sum_exp.zero_();
    sum_exp_z.zero_();
    predicted.zero_();
    return;
  }
  const Tensor z = logits.to(m).mul(scale.unsqueeze(1));
  const auto label = label_columns(labels, first_column, columns);
  predicted.copy_(z.gather(1, label.column).masked_fill_(label.not_held, 0).squeeze(1));
  largest.copy_(z.amax(-1).clamp_min_(lowest));
  const Tensor shifted = z.sub(largest.unsqueeze(1));
  const Tensor e = shifted.exp();
  sum_exp.copy_(e.sum(-1));
  sum_exp_z.copy_(vanishing_product(e, shifted).sum(-1));
}

void implementation<targets::vocab_rows_backward, vendors::original>::call(
    Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column, const Tensor& lse,
    const Tensor& entropy, const Tensor& d_log_prob, const Tensor& d_entropy) {
  const std::int64_t columns = logits.size(1);
  if (columns == 0) return;
  const auto m = kernels::main_dtype(logits.scalar_type());
  const Tensor log_p = logits.to(m).mul(scale.unsqueeze(1)).sub_(lse.unsqueeze(1));
  const Tensor p = log_p.exp();
  const auto label = label_columns(labels, first_column, columns);
  Tensor gradient = p.mul(d_log_prob.neg().unsqueeze(1));
  gradient.scatter_add_(1, label.column, d_log_prob.unsqueeze(1).masked_fill(label.not_held, 0));
  if (d_entropy.defined())
    gradient.sub_(vanishing_product(p, log_p.add(entropy.unsqueeze(1))).mul_(d_entropy.unsqueeze(1)));
  logits.copy_(gradient.mul_(scale.unsqueeze(1)));
}

}  // namespace mgfl
