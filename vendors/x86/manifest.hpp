/// Kernel set for x86-64 CPUs: which kernels it replaces, and what it looks at when an engine starts.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/training.hpp"

namespace mgfl {

namespace vendors {
struct x86 {
  static constexpr std::string_view name = "x86";
  using fallback = original;
};
}  // namespace vendors

template <>
struct manifest<vendors::x86> {
  using overrides = list<targets::linear, targets::linear_input_grad, targets::linear_weight_grad,
                         targets::bias_grad, targets::rms_norm, targets::rms_norm_backward,
                         targets::qk_norm_rotary, targets::qk_norm_rotary_backward, targets::attention,
                         targets::attention_backward, targets::swiglu, targets::swiglu_backward,
                         targets::embedding, targets::embedding_backward, targets::vocab_row_statistics,
                         targets::vocab_rows_backward, targets::adamw_step, targets::compile_dependencies>;
};

}  // namespace mgfl
