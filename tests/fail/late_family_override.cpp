// An override of a family that comes after the facade; only family_is_checked makes compilers reject it.
// expected-error: mgfl: implementation<T, V> was not visible at first use
// expected-error: after instantiation
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"

#ifndef MGFL_TWIN
#include "policies/optimizer/clip_grads.hpp"
#endif

namespace mgfl {
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::acme>
    : overrides<targets::get_grad_norm_fp32, vendors::acme> {
  template <parallel::Communicator C>
  static double call(std::span<const Tensor> grads, double norm_type, const parallel::GroupList<C>& groups);
};
}  // namespace mgfl

#ifdef MGFL_TWIN
#include "policies/optimizer/clip_grads.hpp"
#endif
