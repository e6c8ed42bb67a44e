#include "mgfl/engine/loss.hpp"

namespace mgfl {

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

}  // namespace mgfl
