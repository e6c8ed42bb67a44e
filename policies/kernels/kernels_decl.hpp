/// Declares every compute kernel's original; vendors include this and specialize
/// `implementation<targets::NAME, VENDOR>`.
///
/// Conventions: activations are row-major and contiguous, one row a token; dtype D is fp64, fp32, bf16 or
/// fp16, the same for weights and activations; gradients of weights accumulate into main-gradient buffers of
/// dtype M (fp32, or fp64 where D is fp64). 16-bit inputs are summed in fp32, fp32 ones too, fp64 in fp64.
/// Outputs are allocated by the caller. Everything is deterministic at a fixed number of threads.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "policies/kernels/types.hpp"

namespace mgfl {

/// y = x w^T (+ bias).  x [tokens, in], w [out, in], bias [out] or undefined, y [tokens, out].
template <>
struct implementation<targets::linear, vendors::original> {
  static void call(const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);
};

/// dx = dy w.  dy [tokens, out], w [out, in], dx [tokens, in].
template <>
struct implementation<targets::linear_input_grad, vendors::original> {
  static void call(const Tensor& dy, const Tensor& w, Tensor& dx);
};

/// main_grad += dy^T x.  dy [tokens, out], x [tokens, in], main_grad [out, in] of dtype M.
template <>
struct implementation<targets::linear_weight_grad, vendors::original> {
  static void call(const Tensor& dy, const Tensor& x, Tensor& main_grad);
};

/// main_grad += sum of dy over tokens.  dy [tokens, out], main_grad [out] of dtype M.
template <>
struct implementation<targets::bias_grad, vendors::original> {
  static void call(const Tensor& dy, Tensor& main_grad);
};

/// sum = x + residual (rounded to D); y = sum * rstd * w with rstd = 1 / sqrt(mean(sum^2) + eps).
/// x, residual, sum, y [tokens, hidden]; w [hidden]; rstd [tokens] of dtype M. residual undefined: sum is not
/// written and x is normed; otherwise `sum` may be the same tensor as x.
template <>
struct implementation<targets::rms_norm, vendors::original> {
  static void call(const Tensor& x, const Tensor& residual, const Tensor& w, double eps, Tensor& sum,
                   Tensor& y, Tensor& rstd);
};

/// dx = (gradient of rms_norm at x for dy) + residual_grad;  w_grad += sum over tokens of dy * x * rstd.
/// dy, x, dx [tokens, hidden]; residual_grad like dx or undefined (dx may be the same tensor as dy or
/// residual_grad); rstd [tokens], w_grad [hidden] of dtype M.
template <>
struct implementation<targets::rms_norm_backward, vendors::original> {
  static void call(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd,
                   const Tensor& residual_grad, Tensor& dx, Tensor& w_grad);
};

/// Norms each q head (where q_norm [head_dim] is defined) and each k head (k_norm), then rotates q and k by
/// HF's half-rotation: out = [a cos - b sin, b cos + a sin] for the halves a, b of a head's first 2 * half
/// dimensions; the rest and v are copied.
/// qkv, out [tokens, layout.row_width()] (may be the same tensor when nothing is normed); cos, sin [tokens,
/// half] of dtype M, already of each token's position; rstd [tokens, groups * (queries_per_group + 1)] of
/// dtype M, written when heads are normed (per group: its queries, then its key).
template <>
struct implementation<targets::qk_norm_rotary, vendors::original> {
  static void call(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, double eps,
                   const Tensor& cos, const Tensor& sin, const kernels::QkvLayout& layout, Tensor& out,
                   Tensor& rstd);
};

/// Gradient of qk_norm_rotary, in place on dqkv: on entry for `out`, on exit for `qkv`. qkv is the input of
/// the forward pass (unused when nothing is normed). q_norm_grad, k_norm_grad [head_dim] of dtype M
/// accumulate.
template <>
struct implementation<targets::qk_norm_rotary_backward, vendors::original> {
  static void call(Tensor& dqkv, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                   const Tensor& cos, const Tensor& sin, const Tensor& rstd, const kernels::QkvLayout& layout,
                   Tensor& q_norm_grad, Tensor& k_norm_grad);
};

/// Causal attention inside each document.  qkv [tokens, row_width]; cu_seqlens int32 [documents + 1], from 0
/// to tokens; out [tokens, heads * head_dim]; lse [heads, tokens] of dtype M: log of the sum of exp(scale * q
/// . k) over visible keys.
template <>
struct implementation<targets::attention, vendors::original> {
  static void call(const Tensor& qkv, const Tensor& cu_seqlens, const kernels::AttentionShape& shape,
                   Tensor& out, Tensor& lse);
};

/// Gradient of attention: dqkv [tokens, row_width] is written whole.
template <>
struct implementation<targets::attention_backward, vendors::original> {
  static void call(const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                   const Tensor& cu_seqlens, const kernels::AttentionShape& shape, Tensor& dqkv);
};

/// activated = silu(gate) * up.  gate_up [tokens, 2 ffn]: gate, then up; activated [tokens, ffn].
template <>
struct implementation<targets::swiglu, vendors::original> {
  static void call(const Tensor& gate_up, Tensor& activated);
};

/// Gradient of swiglu: d_gate_up [tokens, 2 ffn] (may be the same tensor as gate_up); also computes
/// `activated` anew, which the weight gradient of the next linear needs, so that the forward pass need not
/// keep it.
template <>
struct implementation<targets::swiglu_backward, vendors::original> {
  static void call(const Tensor& d_activated, const Tensor& gate_up, Tensor& d_gate_up, Tensor& activated);
};

/// out[t] = w[ids[t] - first_row], or 0 where that row is not held here.  ids int64 [tokens], w [rows,
/// hidden].
template <>
struct implementation<targets::embedding, vendors::original> {
  static void call(const Tensor& ids, const Tensor& w, std::int64_t first_row, Tensor& out);
};

/// main_grad[ids[t] - first_row] += dout[t], in ascending order of t.  main_grad [rows, hidden] of dtype M.
template <>
struct implementation<targets::embedding_backward, vendors::original> {
  static void call(const Tensor& ids, const Tensor& dout, std::int64_t first_row, Tensor& main_grad);
};

/// Row statistics of z = logits * scale[row] over the columns held here.  logits [rows, columns] of dtype D;
/// labels int64 [rows], global ids (any id outside [first_column, first_column + columns) is not held here);
/// scale [rows] of dtype M (1 / temperature). Written, [rows] of dtype M each: largest = max z; sum_exp = sum
/// e^(z - largest); sum_exp_z = sum e^(z - largest) (z - largest); predicted = z[label], or 0 where the label
/// is not held here. A z of minus infinity adds 0; where there is no other, or no column at all, largest is
/// M's lowest finite number and the sums are 0, so that shards combine without a NaN.
template <>
struct implementation<targets::vocab_row_statistics, vendors::original> {
  static void call(const Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
                   Tensor& largest, Tensor& sum_exp, Tensor& sum_exp_z, Tensor& predicted);
};

/// Turns logits into their gradient, in place:  with p = e^(z - lse), z = logits * scale[row],
/// d_logit_j = scale * ( d_log_prob (1[j == label] - p_j) - d_entropy p_j (log p_j + entropy) ).
/// lse, entropy, d_log_prob, d_entropy [rows] of dtype M; d_entropy may be undefined (0).
template <>
struct implementation<targets::vocab_rows_backward, vendors::original> {
  static void call(Tensor& logits, const Tensor& labels, const Tensor& scale, std::int64_t first_column,
                   const Tensor& lse, const Tensor& entropy, const Tensor& d_log_prob,
                   const Tensor& d_entropy);
};

/// One AdamW update of a flat shard, see AdamWStep.  main_param, grad, exp_avg, exp_avg_sq [n] of dtype M;
/// model_param [n] of dtype D receives the rounded result, or is undefined where main_param is the model's
/// own weight.
template <>
struct implementation<targets::adamw_step, vendors::original> {
  static void call(Tensor& main_param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
                   Tensor& model_param, const kernels::AdamWStep& step);
};

}  // namespace mgfl
