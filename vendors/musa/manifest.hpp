/// Vendor musa (Moore Threads): what it replaces; the rest comes from vendor default.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/distributed.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

namespace vendors {
struct musa {
  static constexpr std::string_view name = "musa";
  static constexpr std::string_view device = "musa";
  using fallback = default_;
};
}  // namespace vendors

template <>
struct manifest<vendors::musa> {
  using overrides = list<targets::get_grad_norm_fp32, targets::gradient_reduce_preprocessing>;
};

}  // namespace mgfl
