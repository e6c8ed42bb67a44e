// Nobody preferred, ATen's kernels: default's overrides, then the originals.
#include "mgfl/engine/engine_registry.hpp"
#include "policies/distributed/finalize_model_grads.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/optimizer/clip_grads.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"
#include "policies/scheduler/cosine_annealing_lr.hpp"

namespace mgfl {
static_assert(std::is_same_v<vendors::preferred, vendors::default_>);
static_assert(std::is_same_v<active_vendor<targets::get_grad_norm_fp32>, vendors::default_>);
static_assert(std::is_same_v<active_vendor<targets::unscale_main_grads>, vendors::default_>);
static_assert(std::is_same_v<active_vendor<targets::allreduce_embedding_grad>, vendors::default_>);
static_assert(std::is_same_v<active_vendor<targets::linear>, vendors::original>);
// an offer counts when it is preferred, not when it is the only one
static_assert(std::is_same_v<active_vendor<targets::swiglu>, vendors::original>);
static_assert(std::is_same_v<scheduler::CosineAnnealingLR, scheduler::WSDScheduler>);
static_assert(kernels::linear == &implementation<targets::linear, vendors::original>::call);
// a vendor that was not selected is known by its manifest, its bodies are not there
static_assert(vendors::known::has<vendors::musa> &&
              manifest<vendors::musa>::overrides::has<targets::get_grad_norm_fp32>);
// nor are its engines, and the device is the host
static_assert(std::is_same_v<vendor_engines, list<>>);
static_assert(build_device.view() == "cpu" && build_vendor.view() == "default");
}  // namespace mgfl
