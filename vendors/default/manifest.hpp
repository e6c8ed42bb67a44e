/// Vendor default: what runs when MG_FL_PREFER names nobody.
#pragma once

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/distributed.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "mgfl/override/targets/training.hpp"

namespace mgfl {

template <>
struct manifest<vendors::default_> {
  using overrides = list<targets::get_grad_norm_fp32, targets::unscale_main_grads, targets::CosineAnnealingLR,
                         targets::get_lr, targets::allreduce_embedding_grad, targets::get_device>;
};

}  // namespace mgfl
