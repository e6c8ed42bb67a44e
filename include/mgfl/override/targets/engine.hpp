/// Names of the steps in which an engine is built.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct build_tf_config : target<"mgfl.engine.transformer_impl.MegatronEngine._build_tf_config"> {};
struct build_megatron_module : target<"mgfl.engine.transformer_impl.MegatronEngine._build_megatron_module"> {
};
struct maybe_enable_fused_kernels
    : target<"mgfl.engine.transformer_impl.MegatronEngine._maybe_enable_fused_kernels"> {};
struct build_optimizer : target<"mgfl.engine.transformer_impl.MegatronEngine._build_optimizer"> {};
struct build_lr_scheduler : target<"mgfl.engine.transformer_impl.MegatronEngine._build_lr_scheduler"> {};

using engine_targets = list<build_tf_config, build_megatron_module, maybe_enable_fused_kernels,
                            build_optimizer, build_lr_scheduler>;

}  // namespace mgfl::targets
