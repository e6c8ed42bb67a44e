// musa preferred: its norm, and default's overrides for the rest.
#include "policies/distributed/finalize_model_grads.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"

namespace mgfl {
using C = parallel::communicator_archetype;
static_assert(std::is_same_v<vendors::preferred, vendors::musa>);
static_assert(std::is_same_v<active_vendor<targets::get_grad_norm_fp32>, vendors::musa>);
static_assert(dispatch_family<targets::get_grad_norm_fp32, C> ==
              &implementation<targets::get_grad_norm_fp32, vendors::musa>::call<C>);
static_assert(std::is_same_v<active_vendor<targets::unscale_main_grads>, vendors::default_>);
static_assert(std::is_same_v<active_vendor<targets::allreduce_embedding_grad>, vendors::default_>);
static_assert(std::is_same_v<scheduler::CosineAnnealingLR, scheduler::WSDScheduler>);
}  // namespace mgfl
