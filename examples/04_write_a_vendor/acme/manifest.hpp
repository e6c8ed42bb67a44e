/// Vendor acme: its tag, who is asked after it, and what it overrides.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "mgfl/override/targets/training.hpp"

namespace mgfl {

namespace vendors {
struct acme {
  static constexpr std::string_view name = "acme";  // the folder's name
  using fallback = default_;                        // what acme leaves out, vendor default answers
};
}  // namespace vendors

template <>
struct manifest<vendors::acme> {
  using overrides = list<targets::compile_dependencies, targets::unscale_main_grads,
                         targets::CosineAnnealingLR, targets::swiglu>;
};

}  // namespace mgfl
