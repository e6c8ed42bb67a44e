/// Calls the active compute kernels: `kernels::rms_norm(...)` is the body that this build's vendor and kernel
/// set provide.
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/kernels/kernels_decl.hpp"

namespace mgfl::kernels {

inline constexpr auto linear = dispatch<targets::linear>;
inline constexpr auto linear_input_grad = dispatch<targets::linear_input_grad>;
inline constexpr auto linear_weight_grad = dispatch<targets::linear_weight_grad>;
inline constexpr auto bias_grad = dispatch<targets::bias_grad>;
inline constexpr auto rms_norm = dispatch<targets::rms_norm>;
inline constexpr auto rms_norm_backward = dispatch<targets::rms_norm_backward>;
inline constexpr auto qk_norm_rotary = dispatch<targets::qk_norm_rotary>;
inline constexpr auto qk_norm_rotary_backward = dispatch<targets::qk_norm_rotary_backward>;
inline constexpr auto attention = dispatch<targets::attention>;
inline constexpr auto attention_backward = dispatch<targets::attention_backward>;
inline constexpr auto swiglu = dispatch<targets::swiglu>;
inline constexpr auto swiglu_backward = dispatch<targets::swiglu_backward>;
inline constexpr auto embedding = dispatch<targets::embedding>;
inline constexpr auto embedding_backward = dispatch<targets::embedding_backward>;
inline constexpr auto vocab_row_statistics = dispatch<targets::vocab_row_statistics>;
inline constexpr auto vocab_rows_backward = dispatch<targets::vocab_rows_backward>;
inline constexpr auto adamw_step = dispatch<targets::adamw_step>;

}  // namespace mgfl::kernels
