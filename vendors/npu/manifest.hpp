/// Vendor npu (Huawei Ascend): what it replaces; the rest comes from vendor default.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/distributed.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/training.hpp"

namespace mgfl {

namespace vendors {
struct npu {
  static constexpr std::string_view name = "npu";
  static constexpr std::string_view device = "npu";
  using fallback = default_;
};
}  // namespace vendors

template <>
struct manifest<vendors::npu> {
  using overrides = list<targets::adamw_step, targets::get_device, targets::gradient_reduce_preprocessing>;
};

}  // namespace mgfl
