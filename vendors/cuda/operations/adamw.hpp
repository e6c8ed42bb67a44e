/// One AdamW update of a flat shard; what each factor is, is said in policies/kernels/optimizer.cpp.
#pragma once

#include <cmath>

#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

template <class M>
struct AdamWFactors {
  M grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root2, eps;
};

template <class D>
struct AdamW {
  static constexpr const char* name = "adamw_step";
  using M = main_of<D>;

  M* main_param;
  const M* grad;
  M *exp_avg, *exp_avg_sq;
  D* model_param;  // may be null
  std::int64_t n;
  AdamWFactors<M> f;

  static constexpr std::int64_t elements_per_row = 4 * row_threads;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t row) const {
    team.each(piece_length(n, row, elements_per_row), [&](std::int64_t offset) {
      const std::int64_t i = row * elements_per_row + offset;
      const M gradient = grad[i] * f.grad_scale;
      const M m = f.beta1 * exp_avg[i] + f.one_minus_beta1 * gradient;
      const M v = f.beta2 * exp_avg_sq[i] + f.one_minus_beta2 * gradient * gradient;
      const M p = main_param[i] * f.decay - f.step_size * m / (std::sqrt(v) / f.root2 + f.eps);
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
      main_param[i] = p;
      if (model_param) model_param[i] = static_cast<D>(p);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(pieces(n, elements_per_row), *this);
  }
};

}  // namespace mgfl::cuda
