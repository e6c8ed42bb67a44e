/// Stands for the header that CMake writes: one vendor, acme, whose manifest and override header a test may
/// give.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

namespace vendors {
struct acme {
  static constexpr std::string_view name = "acme";
  using fallback = default_;
};
using preferred = acme;
using kernel_set = original;
using known = list<default_, acme>;
using known_kernel_sets = list<>;
#ifdef MGFL_TEST_CHAIN
using chain = list<MGFL_TEST_CHAIN>;
#else
using chain = list<acme, default_>;
#endif
}  // namespace vendors

template <>
struct fallback_of<vendors::default_> {
  using type = vendors::kernel_set;
};

#if defined(MGFL_TEST_MANIFEST)
template <>
struct manifest<vendors::acme> {
  using overrides = list<MGFL_TEST_MANIFEST>;
};
#elif defined(MGFL_TEST_ENGINES)
template <>
struct manifest<vendors::acme> {
  using overrides = list<>;
  using engines = list<MGFL_TEST_ENGINES>;
};
#endif

}  // namespace mgfl

#ifdef MGFL_TEST_OVERRIDES
#include MGFL_TEST_OVERRIDES
#endif
