/// Norm and rotation of the q and k heads of fused QKV rows, and their gradient, one row a head.
#pragma once

#include <cmath>

#include "vendors/cuda/operations/column_sums.hpp"
#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

/// kernels::QkvLayout with the number of rotated pairs of a head.
struct Heads {
  std::int64_t groups, queries_per_group, head_dim, half;
};

template <class D>
struct QkNormRotary {
  static constexpr const char* name = "qk_norm_rotary";
  using M = main_of<D>;

  const D *qkv, *q_norm, *k_norm;  // a null norm leaves its heads unnormed
  M eps;
  const M *cos, *sin;
  Heads heads;
  D* out;  // may be qkv where nothing is normed
  M* rstd;
  std::int64_t tokens;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t per_group = heads.queries_per_group + 2, head = row % per_group;
    const std::int64_t token_group = row / per_group, token = token_group / heads.groups;
    const D* from = qkv + row * heads.head_dim;
    D* to = out + row * heads.head_dim;
    if (head > heads.queries_per_group) {  // v
      if (to != from) team.each(heads.head_dim, [&](std::int64_t i) { to[i] = from[i]; });
      return;
    }
    const D* norm = head < heads.queries_per_group ? q_norm : k_norm;
    M scale = 1;
    if (norm) {
      const M squares = team.reduce(
          heads.head_dim, M(0),
          [&](std::int64_t i) { return static_cast<M>(from[i]) * static_cast<M>(from[i]); }, Plus{});
      scale = 1 / std::sqrt(squares / static_cast<M>(heads.head_dim) + eps);
      team.each(1, [&](std::int64_t) { rstd[token_group * (heads.queries_per_group + 1) + head] = scale; });
    }
    const auto value = [&](std::int64_t i) {
      const M x = static_cast<M>(from[i]);
      return norm ? x * scale * static_cast<M>(norm[i]) : x;
    };
    const std::int64_t half = heads.half;
    const M *c = cos + token * half, *s = sin + token * half;
    team.each(half, [&](std::int64_t i) {
      const M a = value(i), b = value(half + i);
      to[i] = static_cast<D>(a * c[i] - b * s[i]);
      to[half + i] = static_cast<D>(b * c[i] + a * s[i]);
    });
    team.each(heads.head_dim - 2 * half,
              [&](std::int64_t i) { to[2 * half + i] = static_cast<D>(value(2 * half + i)); });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<head_threads>(tokens * heads.groups * (heads.queries_per_group + 2), *this);
  }
};

/// Gradient with respect to a head before its rotation: the rotation by the opposite angle.
template <class D>
struct Unrotated {
  using M = main_of<D>;

  const D* gradient;   // of the rotated head
  const M *cos, *sin;  // of its token
  std::int64_t half;

  MGFL_CUDA_DEVICE M operator()(std::int64_t i) const {
    if (i >= 2 * half) return static_cast<M>(gradient[i]);
    if (i < half) return static_cast<M>(gradient[i]) * cos[i] + static_cast<M>(gradient[half + i]) * sin[i];
    const std::int64_t pair = i - half;
    return static_cast<M>(gradient[i]) * cos[pair] - static_cast<M>(gradient[pair]) * sin[pair];
  }
};

template <class D>
struct QkNormRotaryBackward {
  static constexpr const char* name = "qk_norm_rotary_backward";
  using M = main_of<D>;

  D* dqkv;
  const D *qkv, *q_norm, *k_norm;  // a null norm: its heads were not normed
  const M *cos, *sin, *rstd;
  Heads heads;
  M *q_norm_grad, *k_norm_grad;
  std::int64_t tokens;

  /// One head of dqkv with what belongs to it; `head` counts a group's queries, then its key.
  struct Head {
    std::int64_t start;  // in qkv and dqkv
    Unrotated<D> gradient;
    M scale;

    MGFL_CUDA_DEVICE Head(const QkNormRotaryBackward& all, std::int64_t token_group, std::int64_t head)
        : start((token_group * (all.heads.queries_per_group + 2) + head) * all.heads.head_dim),
          gradient{all.dqkv + start, all.cos + token_group / all.heads.groups * all.heads.half,
                   all.sin + token_group / all.heads.groups * all.heads.half, all.heads.half},
          scale(all.rstd ? all.rstd[token_group * (all.heads.queries_per_group + 1) + head] : M(1)) {}
  };

  /// Of one kind of heads, `count` in each group from `first` on.
  struct NormGrad {
    QkNormRotaryBackward all;
    std::int64_t first, count;

    MGFL_CUDA_DEVICE M operator()(std::int64_t row, std::int64_t column) const {
      const Head head(all, row / count, first + row % count);
      return head.gradient(column) * (static_cast<M>(all.qkv[head.start + column]) * head.scale);
    }
  };

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t per_group = heads.queries_per_group + 1, half = heads.half;
    const Head head(*this, row / per_group, row % per_group);
    const D* norm = row % per_group < heads.queries_per_group ? q_norm : k_norm;
    D* to = dqkv + head.start;
    // A thread owns both members of a pair, so that it may overwrite what it alone has read.
    const std::int64_t slots = heads.head_dim - half;
    const auto g = [&](std::int64_t i) { return head.gradient(i) * static_cast<M>(norm[i]); };
    const auto n = [&](std::int64_t i) { return static_cast<M>(qkv[head.start + i]) * head.scale; };
    M mean = 0;
    if (norm)
      mean = team.reduce(
                 slots, M(0),
                 [&](std::int64_t slot) {
                   const M second = g(half + slot) * n(half + slot);
                   return slot < half ? g(slot) * n(slot) + second : second;
                 },
                 Plus{}) /
             static_cast<M>(heads.head_dim);
    const auto result = [&](std::int64_t i) {
      return static_cast<D>(norm ? (g(i) - n(i) * mean) * head.scale : head.gradient(i));
    };
    team.each(slots, [&](std::int64_t slot) {
      const D second = result(half + slot);
      if (slot < half) to[slot] = result(slot);
      to[half + slot] = second;
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    const std::int64_t token_groups = tokens * heads.groups, queries = heads.queries_per_group;
    if (q_norm)
      add_column_sums(executor, token_groups * queries, heads.head_dim, NormGrad{*this, 0, queries},
                      q_norm_grad);
    if (k_norm)
      add_column_sums(executor, token_groups, heads.head_dim, NormGrad{*this, queries, 1}, k_norm_grad);
    executor.template rows<head_threads>(token_groups * (queries + 1), *this);
  }
};

}  // namespace mgfl::cuda
