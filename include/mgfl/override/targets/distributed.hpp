/// Names of the overridable things around gradients of several ranks.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct allreduce_embedding_grad
    : target<"mgfl.core.distributed.finalize_model_grads._allreduce_embedding_grad"> {};

using distributed_targets = list<allreduce_embedding_grad>;

}  // namespace mgfl::targets
