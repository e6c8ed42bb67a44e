/// The vectorised loops of the x86 kernel set as plain functions over pointers: the only door between code
/// that is compiled for the build machine's instruction set (simd/*.cpp) and the rest of the program.
///
/// Files in simd/ include no LibTorch and no standard library templates: an inline function compiled there
/// with AVX-512 could otherwise be the copy that the linker keeps for the whole program, which would then
/// fail on older machines. D is float or bf16. `threads` is the size of the OpenMP team; no result depends on
/// it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mgfl::x86 {

/// Storage of one bfloat16.
struct bf16 {
  std::uint16_t bits;
};

/// Memory of at least `bytes`, aligned to 64 bytes, that stays valid until this thread's next call; contents
/// are arbitrary.
void* scratch(std::size_t bytes);

/// rstd[t] of each row of x (+ residual, if not null), and y = row * rstd * w; `sum` receives x + residual.
template <class D>
void rms_norm(const D* x, const D* residual, const D* w, float eps, D* sum, D* y, float* rstd,
              std::int64_t tokens, std::int64_t hidden, int threads);

/// residual_grad may be null; dx may be dy or residual_grad.
template <class D>
void rms_norm_backward(const D* dy, const D* x, const D* w, const float* rstd, const D* residual_grad, D* dx,
                       float* w_grad, std::int64_t tokens, std::int64_t hidden, int threads);

/// Heads of a fused QKV row, as QkvLayout says; `half` dimensions are rotated against the `half` after them.
struct Heads {
  std::int64_t groups, queries_per_group, head_dim, half;
};
inline constexpr std::int64_t largest_normed_head = 1024;

/// q_norm, k_norm may be null (then that kind of head is not normed, and rstd may be null where neither is).
template <class D>
void qk_norm_rotary(const D* qkv, const D* q_norm, const D* k_norm, float eps, const float* cos,
                    const float* sin, Heads heads, D* out, float* rstd, std::int64_t tokens, int threads);

template <class D>
void qk_norm_rotary_backward(D* dqkv, const D* qkv, const D* q_norm, const D* k_norm, const float* cos,
                             const float* sin, const float* rstd, Heads heads, float* q_norm_grad,
                             float* k_norm_grad, std::int64_t tokens, int threads);

template <class D>
void swiglu(const D* gate_up, D* activated, std::int64_t tokens, std::int64_t ffn, int threads);

template <class D>
void swiglu_backward(const D* d_activated, const D* gate_up, D* d_gate_up, D* activated, std::int64_t tokens,
                     std::int64_t ffn, int threads);

/// y [tokens, out] = x w^T + bias, which may be null. This and the next two: only where simd/ is compiled for
/// AVX-512, and no dimension is 0.
void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t tokens,
            std::int64_t out, std::int64_t in, int threads);

/// dx [tokens, in] = dy w
void linear_input_grad(const float* dy, const float* w, float* dx, std::int64_t tokens, std::int64_t out,
                       std::int64_t in, int threads);

/// main_grad [out, in] += dy^T x
void weight_grad(const float* dy, const float* x, float* main_grad, std::int64_t tokens, std::int64_t out,
                 std::int64_t in, int threads);

/// main_grad [out, in] += dy^T x in exact fp32 sums. Only there where simd/ is compiled with bf16 products.
void weight_grad(const bf16* dy, const bf16* x, float* main_grad, std::int64_t tokens, std::int64_t out,
                 std::int64_t in, int threads);

/// main_grad[column] += sum over rows of dy.
template <class D>
void bias_grad(const D* dy, float* main_grad, std::int64_t rows, std::int64_t columns, int threads);

/// main_grad[ids[t] - first_row] += dout[t] in ascending order of t, for the rows held here.
template <class D>
void embedding_backward(const std::int64_t* ids, const D* dout, std::int64_t first_row, std::int64_t rows,
                        float* main_grad, std::int64_t tokens, std::int64_t hidden, int threads);

template <class D>
void vocab_row_statistics(const D* logits, const std::int64_t* labels, const float* scale,
                          std::int64_t first_column, float* largest, float* sum_exp, float* sum_exp_z,
                          float* predicted, std::int64_t rows, std::int64_t columns, int threads);

/// d_entropy may be null.
template <class D>
void vocab_rows_backward(D* logits, const std::int64_t* labels, const float* scale, std::int64_t first_column,
                         const float* lse, const float* entropy, const float* d_log_prob,
                         const float* d_entropy, std::int64_t rows, std::int64_t columns, int threads);

/// Coefficients of one AdamW update, in the order in which they are applied.
struct AdamW {
  float grad_scale, keep;  // keep = 1 - lr weight_decay
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size, inverse_root_c2, eps;  // step_size = lr / c1
};

/// model_param may be null.
template <class D>
void adamw_step(float* main_param, const float* grad, float* exp_avg, float* exp_avg_sq, D* model_param,
                std::int64_t n, AdamW step, int threads);

/// Packed documents and heads of one attention call. bounds [documents + 1] ascends from 0 to tokens;
/// head_dim is a multiple of 16; scale is positive; window 0 means no limit.
struct Attention {
  const std::int32_t* bounds;
  std::int64_t documents, tokens, groups, queries_per_group, head_dim, window;
  float scale;
};
inline constexpr std::int64_t head_dim_step = 16, largest_attention_head = 256;

/// lse [heads, tokens]
template <class D>
void attention(const D* qkv, Attention shape, D* out, float* lse, int threads);

template <class D>
void attention_backward(const D* dout, const D* qkv, const D* out, const float* lse, Attention shape, D* dqkv,
                        int threads);

}  // namespace mgfl::x86
