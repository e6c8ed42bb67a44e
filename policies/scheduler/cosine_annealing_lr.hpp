/// The scheduler class that this build's vendor provides as CosineAnnealingLR.
/// Python: megatron/core/optimizer/lr_scheduler.py, CosineAnnealingLR
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "policies/scheduler/cosine_annealing_lr_decl.hpp"

namespace mgfl::scheduler {

/// original::CosineAnnealingLR or a class that derives from it (vendor default: WSDScheduler).
using CosineAnnealingLR = override_class_t<targets::CosineAnnealingLR>;

}  // namespace mgfl::scheduler
