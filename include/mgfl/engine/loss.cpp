#include "mgfl/engine/loss.hpp"

#include "mgfl/base/error.hpp"

namespace mgfl {

double share_of_mean_log_prob(double label_smoothing, std::int64_t vocab_size) {
  check_user(label_smoothing >= 0 && label_smoothing < 1 && (label_smoothing == 0 || vocab_size > 1),
             "label_smoothing is ", label_smoothing, " over a vocabulary of ", vocab_size,
             " tokens; give one from 0 to below 1, and engine.config().vocab_size.");
  if (label_smoothing == 0) return 0;
  const auto v = static_cast<double>(vocab_size);
  return label_smoothing * v / (v - 1);
}

LossTerms LabelSmoothedLoss::operator()(const LossInput& input) const {
  const double s = share_of_mean_log_prob(label_smoothing, vocab_size);
  check_user(input.mean_log_probs.defined(),
             "LabelSmoothedLoss: needs the mean of log p over the vocabulary; set "
             "EngineConfig::calculate_mean_log_probs.");
  const auto mask = input.batch.loss_mask.mul(input.batch.labels.ne(ignore_index));
  const auto weight = mask.to(input.log_probs.scalar_type());
  const auto loss = input.log_probs.mul(s - 1).sub(input.mean_log_probs.mul(s));
  return {{"loss", loss.mul(weight).sum(), ordered_sum(mask)}};
}

double ordered_sum(const Tensor& values) {
  const auto flat = values.detach().to(at::kDouble).contiguous();
  const auto* x = flat.const_data_ptr<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < flat.numel(); ++i) sum += x[i];
  return sum;
}

TokenWeights SftLoss::token_weights(const Batch& batch) const {
  auto weight = batch.loss_mask.masked_fill(batch.labels.eq(ignore_index), 0.0);
  const auto count = ordered_sum(weight);
  return {"loss", std::move(weight), count};
}

TotalLoss total_loss(const LossTerms& terms) {
  TotalLoss total;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const auto& term = terms[i];
    for (std::size_t j = 0; j < i; ++j)  // one metric would have both counts
      check_user(terms[j].name != term.name, "loss closure: two terms are named \"", term.name,
                 "\"; give each a name of its own.");
    if (!term.is_loss) continue;
    check_user(term.aggregation == MetricAggregation::mean || term.aggregation == MetricAggregation::sum,
               "loss closure: term \"", term.name,
               "\" enters the gradient as a minimum or maximum; only means and sums do.");
    if (!total.sum.defined()) {
      total = {term.sum, term.count, term.aggregation};
      continue;
    }
    check_user(total.count == term.count && total.aggregation == term.aggregation,
               "loss closure: terms that enter the gradient have counts ", total.count, " and ", term.count,
               " in one micro-batch, or unlike aggregations; give them one count and put the ratio into the "
               "sum.");
    total.sum = total.sum.add(term.sum);
  }
  return total;
}

}  // namespace mgfl
