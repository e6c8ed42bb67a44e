// A family override whose template call() returns something else than the original's.
// expected-error: mgfl: an override's call() must have exactly the original's signature (compared on the family's archetype).
#define MGFL_TEST_MANIFEST targets::get_grad_norm_fp32
#include "mgfl/override/dispatch.hpp"
#include "policies/optimizer/clip_grads_decl.hpp"

namespace mgfl {
template <>
struct implementation<targets::get_grad_norm_fp32, vendors::acme>
    : overrides<targets::get_grad_norm_fp32, vendors::acme> {
  template <parallel::Communicator C>
#ifdef MGFL_TWIN
  static double call(std::span<const Tensor> grads, double norm_type, const parallel::GroupList<C>& groups);
#else
  static float call(std::span<const Tensor> grads, double norm_type, const parallel::GroupList<C>& groups);
#endif
};
}  // namespace mgfl

#include "policies/optimizer/clip_grads.hpp"
