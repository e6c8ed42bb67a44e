/// A function target's original and acme's override of it.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

template <>
struct implementation<targets::get_grad_norm_fp32, vendors::original> {
  static double call(const double& grad, double norm_type);
};

#ifndef MGFL_TEST_WITHOUT_OVERRIDE
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::acme>
    : overrides<targets::get_grad_norm_fp32, vendors::acme> {
  static double call(const double& grad, double norm_type);
};
#endif

}  // namespace mgfl
