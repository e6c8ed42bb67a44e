/// A vendor outside the tree, for the tests.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/engine.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

namespace vendors {
struct musa;
struct acme {
  static constexpr std::string_view name = "acme";
  // using fallback = default_;  a comment does not count
  using fallback = musa;
};
}  // namespace vendors

template <>
struct manifest<vendors::acme> {
  using overrides = list<targets::CosineAnnealingLR, targets::swiglu, targets::build_lr_scheduler>;
};

}  // namespace mgfl
