/// A vendor outside the tree, for the tests.
#pragma once

#include "mgfl/engine/engine_entry.hpp"
#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/engine.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

namespace vendors {
struct musa;
struct acme {
  static constexpr std::string_view name = "acme";
  static constexpr std::string_view device = "acme_chip";
  // using fallback = default_;  a comment does not count
  using fallback = musa;
};
}  // namespace vendors

namespace acme {
struct counting;  // engine/counting_engine.hpp
}

template <>
struct manifest<vendors::acme> {
  using overrides = list<targets::CosineAnnealingLR, targets::swiglu, targets::build_lr_scheduler>;
  using engines = list<engine_entry<"language_model", "megatron", acme::counting, "acme_chip">,
                       engine_entry<"language_model", "acme", acme::counting>>;
};

}  // namespace mgfl
