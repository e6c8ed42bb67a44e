/// Kernel set for x86-64 CPUs: which kernels it replaces.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/kernels.hpp"

namespace mgfl {

namespace vendors {
struct x86 {
  static constexpr std::string_view name = "x86";
  using fallback = original;
};
}  // namespace vendors

template <>
struct manifest<vendors::x86> {
  using overrides = list<>;
};

}  // namespace mgfl
