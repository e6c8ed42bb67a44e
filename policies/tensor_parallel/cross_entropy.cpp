#include "policies/tensor_parallel/cross_entropy.hpp"

#include <algorithm>

#include "mgfl/base/error.hpp"
#include "mgfl/engine/batch.hpp"
#include "mgfl/engine/loss.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl {

namespace {

using tensor_parallel::VocabRange;

/// This rank's columns. UserError where the arguments do not fit each other.
VocabRange checked_range(const Tensor& logits, const Tensor& target, std::int64_t vocab_size,
                         const parallel::TensorParallelGroup& group) {
  const auto range =
      tensor_parallel::vocab_range_from_global_vocab_size(vocab_size, group.rank(), group.size());
  check_user(logits.dim() == 2 && logits.size(1) == range.last - range.first,
             "vocab_parallel_cross_entropy: the logits have shape [", join(logits.sizes()), "], but rank ",
             group.rank(), " of ", group.size(), " holds columns ", range.first, " to ", range.last, " of ",
             vocab_size, "; give each rank its own columns, not gathered ones.");
  check_user(target.dim() == 1 && target.size(0) == logits.size(0) && target.scalar_type() == at::kLong,
             "vocab_parallel_cross_entropy: target has shape [", join(target.sizes()), "], expected int64 [",
             logits.size(0), "].");
  const auto* ids = target.contiguous().const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < target.numel(); ++row)
    check_user(ids[row] == ignore_index || (ids[row] >= 0 && ids[row] < vocab_size),
               "vocab_parallel_cross_entropy: target ", ids[row], " at position ", row,
               " is outside the vocabulary of ", vocab_size, " tokens; ", ignore_index, " is ignored.");
  return range;
}

}  // namespace

tensor_parallel::VocabRange tensor_parallel::vocab_range_from_global_vocab_size(std::int64_t vocab_size,
                                                                                int rank, int size) {
  const auto share = (vocab_size + size - 1) / size;
  return {std::min(rank * share, vocab_size), std::min((rank + 1) * share, vocab_size)};
}

void implementation<targets::combine_vocab_statistics, vendors::original>::call(
    const tensor_parallel::VocabStatistics& statistics, const parallel::TensorParallelGroup& group) {
  if (group.size() == 1) return;
  auto& [largest, sum_exp, sum_exp_z, predicted] = statistics;
  const auto own = largest.clone();
  group.all_reduce(largest, ReduceOp::max);
  // Sums of e^(z - m) move from a rank's own largest m to that of all: the shift is at most 0, and of a rank
  // without columns so low that its factor is 0. Finite, since there 0 is multiplied by it.
  const auto shift = own.sub(largest).clamp_min_(-1e30);
  const auto factor = shift.exp();
  auto sums = empty({3, largest.size(0)}, largest.scalar_type());
  sums.select(0, 0).copy_(sum_exp.mul(factor));
  sums.select(0, 1).copy_(sum_exp.mul(shift).add_(sum_exp_z).mul_(factor));
  sums.select(0, 2).copy_(predicted);
  group.all_reduce(sums);
  sum_exp.copy_(sums.select(0, 0));
  sum_exp_z.copy_(sums.select(0, 1));
  predicted.copy_(sums.select(0, 2));
}

tensor_parallel::CrossEntropy implementation<targets::vocab_parallel_cross_entropy, vendors::original>::call(
    const Tensor& vocab_parallel_logits, const Tensor& target, double label_smoothing,
    std::int64_t vocab_size, const parallel::TensorParallelGroup& group) {
  const double s = share_of_mean_log_prob(label_smoothing, vocab_size);
  const auto range = checked_range(vocab_parallel_logits, target, vocab_size, group);
  const auto rows = vocab_parallel_logits.size(0);
  const auto dtype = kernels::main_dtype(vocab_parallel_logits.scalar_type());
  auto largest = empty({rows}, dtype), sum_exp = empty({rows}, dtype), sum_exp_z = empty({rows}, dtype),
       predicted = empty({rows}, dtype);
  kernels::vocab_row_statistics(vocab_parallel_logits, target, zeros({rows}, dtype).fill_(1.0), range.first,
                                largest, sum_exp, sum_exp_z, predicted);
  tensor_parallel::combine_vocab_statistics({largest, sum_exp, sum_exp_z, predicted}, group);
  const auto log_normalizer = sum_exp.log().add_(largest);
  auto loss = log_normalizer.sub(predicted);
  if (s > 0) {
    auto sum = vocab_parallel_logits.to(dtype).sub(log_normalizer.unsqueeze(1)).sum(-1);
    if (group.size() > 1) group.all_reduce(sum);
    loss = loss.mul(1 - s).sub_(sum.mul(s / static_cast<double>(vocab_size)));
  }
  return {loss.masked_fill_(target.eq(ignore_index), 0.0), log_normalizer};
}

void tensor_parallel::vocab_parallel_cross_entropy_backward(Tensor& vocab_parallel_logits,
                                                            const Tensor& target, const CrossEntropy& forward,
                                                            const Tensor& d_loss, double label_smoothing,
                                                            std::int64_t vocab_size,
                                                            const parallel::TensorParallelGroup& group) {
  const double s = share_of_mean_log_prob(label_smoothing, vocab_size);
  const auto range = checked_range(vocab_parallel_logits, target, vocab_size, group);
  const auto columns = range.last - range.first;
  if (columns == 0) return;
  const auto dtype = kernels::main_dtype(vocab_parallel_logits.scalar_type());
  auto gradient = vocab_parallel_logits.to(dtype).sub(forward.log_normalizer.unsqueeze(1)).exp_();
  const auto column = target.sub(range.first).unsqueeze(1);
  const auto held = column.ge(0).logical_and(column.lt(columns));
  gradient.scatter_add_(1, column.clamp(0, columns - 1), held.to(dtype).mul_(s - 1));
  if (s > 0) gradient.sub_(s / static_cast<double>(vocab_size));
  const auto weight = d_loss.to(dtype).masked_fill(target.eq(ignore_index), 0.0);
  vocab_parallel_logits.copy_(gradient.mul_(weight.unsqueeze(1)));
}

}  // namespace mgfl
