/// RMS norm with its residual sum, and its gradient, one row a token.
#pragma once

#include <cmath>

#include "vendors/cuda/operations/column_sums.hpp"
#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

template <class D>
struct RmsNorm {
  static constexpr const char* name = "rms_norm";
  using M = main_of<D>;

  const D *x, *residual, *w;  // residual may be null; sum is then not written
  M eps;
  D *sum, *y;
  M* rstd;
  std::int64_t tokens, hidden;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t start = token * hidden;
    const M squares = team.reduce(
        hidden, M(0),
        [&](std::int64_t i) {
          M value = static_cast<M>(x[start + i]);
          if (residual) {
            sum[start + i] = static_cast<D>(value + static_cast<M>(residual[start + i]));
            value = static_cast<M>(sum[start + i]);
          }
          return value * value;
        },
        Plus{});
    const M scale = 1 / std::sqrt(squares / static_cast<M>(hidden) + eps);
    const D* normed = residual ? sum : x;
    team.each(1, [&](std::int64_t) { rstd[token] = scale; });
    team.each(hidden, [&](std::int64_t i) {
      y[start + i] = static_cast<D>(static_cast<M>(normed[start + i]) * scale * static_cast<M>(w[i]));
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(tokens, *this);
  }
};

/// With n = x rstd and g = dy w:  dx = rstd (g - n mean(g n)) + residual_grad.
template <class D>
struct RmsNormBackward {
  static constexpr const char* name = "rms_norm_backward";
  using M = main_of<D>;

  const D *dy, *x, *w;
  const M* rstd;
  const D* residual_grad;  // may be null
  D* dx;                   // may be dy or residual_grad
  M* w_grad;
  std::int64_t tokens, hidden;

  struct WeightGrad {
    const D *dy, *x;
    const M* rstd;
    std::int64_t hidden;

    MGFL_CUDA_DEVICE M operator()(std::int64_t token, std::int64_t column) const {
      const std::int64_t at = token * hidden + column;
      return static_cast<M>(dy[at]) * (static_cast<M>(x[at]) * rstd[token]);
    }
  };

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t start = token * hidden;
    const M scale = rstd[token];
    const auto g = [&](std::int64_t i) { return static_cast<M>(dy[start + i]) * static_cast<M>(w[i]); };
    const auto n = [&](std::int64_t i) { return static_cast<M>(x[start + i]) * scale; };
    const M mean = team.reduce(
                       hidden, M(0), [&](std::int64_t i) { return g(i) * n(i); }, Plus{}) /
                   static_cast<M>(hidden);
    team.each(hidden, [&](std::int64_t i) {
      M result = (g(i) - n(i) * mean) * scale;
      if (residual_grad) result += static_cast<M>(residual_grad[start + i]);
      dx[start + i] = static_cast<D>(result);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    add_column_sums(executor, tokens, hidden, WeightGrad{dy, x, rstd, hidden},
                    w_grad);  // dx may overwrite dy
    executor.template rows<row_threads>(tokens, *this);
  }
};

}  // namespace mgfl::cuda
