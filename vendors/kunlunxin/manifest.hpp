/// Vendor kunlunxin (Kunlunxin): what it replaces; the rest comes from vendor default.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/dist_checkpointing.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/tensor_parallel.hpp"

namespace mgfl {

namespace vendors {
struct kunlunxin {
  static constexpr std::string_view name = "kunlunxin";
  static constexpr std::string_view device = "cuda";
  using fallback = default_;
};
}  // namespace vendors

template <>
struct manifest<vendors::kunlunxin> {
  using overrides =
      list<targets::linear, targets::linear_input_grad, targets::linear_weight_grad, targets::qk_norm_rotary,
           targets::qk_norm_rotary_backward, targets::swiglu, targets::swiglu_backward,
           targets::preload_tensors, targets::column_parallel_linear_forward>;
};

}  // namespace mgfl
