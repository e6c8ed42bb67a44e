/// Names of the compute kernels; what each computes is said in policies/kernels/.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct linear : target<"mgfl.core.kernels.linear.linear"> {};
struct linear_input_grad : target<"mgfl.core.kernels.linear.linear_input_grad"> {};
struct linear_weight_grad : target<"mgfl.core.kernels.linear.linear_weight_grad"> {};
struct bias_grad : target<"mgfl.core.kernels.linear.bias_grad"> {};
struct rms_norm : target<"mgfl.core.kernels.rms_norm.rms_norm"> {};
struct rms_norm_backward : target<"mgfl.core.kernels.rms_norm.rms_norm_backward"> {};
struct qk_norm_rotary : target<"mgfl.core.kernels.rotary.qk_norm_rotary"> {};
struct qk_norm_rotary_backward : target<"mgfl.core.kernels.rotary.qk_norm_rotary_backward"> {};
struct attention : target<"mgfl.core.kernels.attention.attention"> {};
struct attention_backward : target<"mgfl.core.kernels.attention.attention_backward"> {};
struct swiglu : target<"mgfl.core.kernels.swiglu.swiglu"> {};
struct swiglu_backward : target<"mgfl.core.kernels.swiglu.swiglu_backward"> {};
struct embedding : target<"mgfl.core.kernels.embedding.embedding"> {};
struct embedding_backward : target<"mgfl.core.kernels.embedding.embedding_backward"> {};
struct vocab_row_statistics : target<"mgfl.core.kernels.cross_entropy.vocab_row_statistics"> {};
struct vocab_rows_backward : target<"mgfl.core.kernels.cross_entropy.vocab_rows_backward"> {};
struct adamw_step : target<"mgfl.core.kernels.optimizer.adamw_step"> {};

using kernel_targets =
    list<linear, linear_input_grad, linear_weight_grad, bias_grad, rms_norm, rms_norm_backward,
         qk_norm_rotary, qk_norm_rotary_backward, attention, attention_backward, swiglu, swiglu_backward,
         embedding, embedding_backward, vocab_row_statistics, vocab_rows_backward, adamw_step>;

}  // namespace mgfl::targets
