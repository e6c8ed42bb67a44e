/// Row statistics of logits and the gradient of log-probabilities and entropies, one row a token.
#pragma once

#include <cmath>
#include <limits>

#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

template <class D>
struct VocabRowStatistics {
  static constexpr const char* name = "vocab_row_statistics";
  using M = main_of<D>;

  const D* logits;
  const std::int64_t* labels;
  const M* scale;
  std::int64_t first_column;
  M *largest, *sum_exp, *sum_exp_z, *predicted;
  std::int64_t rows, columns;
  M lowest = std::numeric_limits<M>::lowest();

  struct Sums {
    M exp, exp_z;
  };
  struct Larger {
    MGFL_CUDA_DEVICE M operator()(M a, M b) const { return b > a || b != b ? b : a; }  // NaN wins
  };
  struct AddSums {
    MGFL_CUDA_DEVICE Sums operator()(const Sums& a, const Sums& b) const {
      return {a.exp + b.exp, a.exp_z + b.exp_z};
    }
  };

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t row) const {
    const D* from = logits + row * columns;
    const M factor = scale[row];
    const auto z = [&](std::int64_t column) { return static_cast<M>(from[column]) * factor; };
    const M most = team.reduce(columns, lowest, z, Larger{});
    const Sums sums = team.reduce(
        columns, Sums{0, 0},
        [&](std::int64_t column) {
          const M shifted = z(column) - most, e = std::exp(shifted);
          return Sums{e, e == 0 ? M(0) : e * shifted};  // e^z z tends to 0, floating point says NaN
        },
        AddSums{});
    const std::int64_t label = labels[row] - first_column;
    team.each(1, [&](std::int64_t) {
      largest[row] = most;
      sum_exp[row] = sums.exp;
      sum_exp_z[row] = sums.exp_z;
      predicted[row] = label >= 0 && label < columns ? z(label) : M(0);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(rows, *this);
  }
};

template <class D>
struct VocabRowsBackward {
  static constexpr const char* name = "vocab_rows_backward";
  using M = main_of<D>;

  D* logits;
  const std::int64_t* labels;
  const M* scale;
  std::int64_t first_column;
  const M *lse, *entropy, *d_log_prob, *d_entropy;  // d_entropy may be null
  std::int64_t rows, columns;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t row) const {
    D* at = logits + row * columns;
    const M factor = scale[row], log_sum = lse[row], d_log = d_log_prob[row];
    const M mean_log = entropy[row], d_ent = d_entropy ? d_entropy[row] : M(0);
    const std::int64_t label = labels[row] - first_column;
    team.each(columns, [&](std::int64_t column) {
      const M log_p = static_cast<M>(at[column]) * factor - log_sum, p = std::exp(log_p);
      M gradient = -d_log * p;
      if (column == label) gradient += d_log;
      if (d_entropy && p != 0) gradient -= d_ent * (p * (log_p + mean_log));
      at[column] = static_cast<D>(gradient * factor);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(rows, *this);
  }
};

}  // namespace mgfl::cuda
