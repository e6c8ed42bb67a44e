/// Small value types that the compute kernels share.
#pragma once

#include <cstdint>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl::kernels {

/// How one row of fused QKV output is laid out: for each kv group [q x queries_per_group, k, v], each
/// `head_dim` wide (Megatron's linear_qkv order).
struct QkvLayout {
  std::int64_t groups = 0;             // kv heads on this rank
  std::int64_t queries_per_group = 0;  // query heads that share one kv head
  std::int64_t head_dim = 0;

  constexpr std::int64_t heads() const { return groups * queries_per_group; }
  constexpr std::int64_t row_width() const { return groups * (queries_per_group + 2) * head_dim; }
};

/// Attention inside packed documents: a query at position t of its document sees positions max(0, t - window
/// + 1) .. t.
struct AttentionShape {
  QkvLayout layout;
  double scale = 1.0;       // multiplies q . k
  std::int64_t window = 0;  // keys seen, the query's own included; 0 = all that came before
};

/// One AdamW update, decoupled decay (torch.optim.AdamW): p -= lr wd p; p -= lr / c1 * m / (sqrt(v) /
/// sqrt(c2) + eps).
struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;    // counts real updates, from 1
  double grad_scale = 1.0;  // multiplies the gradient first: the clip coefficient
};

}  // namespace mgfl::kernels
