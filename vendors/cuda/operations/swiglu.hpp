/// SwiGLU and its gradient, one row a token.
#pragma once

#include <cmath>

#include "vendors/cuda/operations/operation.hpp"

namespace mgfl::cuda {

template <class M>
MGFL_CUDA_DEVICE M sigmoid(M x) {
  return 1 / (1 + std::exp(-x));
}

template <class D>
struct Swiglu {
  static constexpr const char* name = "swiglu";

  const D* gate_up;
  D* activated;
  std::int64_t tokens, ffn;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t token) const {
    using M = main_of<D>;
    const D *gates = gate_up + token * 2 * ffn, *ups = gates + ffn;
    team.each(ffn, [&](std::int64_t i) {
      const M gate = gates[i], up = ups[i];
      activated[token * ffn + i] = static_cast<D>(sigmoid(gate) * gate * up);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(tokens, *this);
  }
};

/// d_gate_up may be gate_up: each element is read and written by one thread.
template <class D>
struct SwigluBackward {
  static constexpr const char* name = "swiglu_backward";

  const D *d_activated, *gate_up;
  D *d_gate_up, *activated;
  std::int64_t tokens, ffn;

  template <class Team>
  MGFL_CUDA_DEVICE void operator()(const Team& team, std::int64_t token) const {
    using M = main_of<D>;
    const D *gates = gate_up + token * 2 * ffn, *ups = gates + ffn;
    D *d_gates = d_gate_up + token * 2 * ffn, *d_ups = d_gates + ffn;
    team.each(ffn, [&](std::int64_t i) {
      const M gate = gates[i], up = ups[i], d = d_activated[token * ffn + i];
      const M s = sigmoid(gate), silu = gate * s;
      activated[token * ffn + i] = static_cast<D>(silu * up);
      d_gates[i] = static_cast<D>(s * (1 + gate * (1 - s)) * up * d);
      d_ups[i] = static_cast<D>(silu * d);
    });
  }

  template <class Executor>
  void run(Executor& executor) const {
    executor.template rows<row_threads>(tokens, *this);
  }
};

}  // namespace mgfl::cuda
