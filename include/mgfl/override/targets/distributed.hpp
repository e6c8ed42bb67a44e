/// Names of the overridable things around gradients of several ranks.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct allreduce_embedding_grad
    : target<"mgfl.core.distributed.finalize_model_grads._allreduce_embedding_grad"> {};

struct get_communication_stream
    : target<"mgfl.core.distributed.param_and_grad_buffer._get_communication_stream"> {};
struct gradient_reduce_preprocessing
    : target<"mgfl.core.distributed.param_and_grad_buffer.gradient_reduce_preprocessing"> {};

using distributed_targets =
    list<allreduce_embedding_grad, get_communication_stream, gradient_reduce_preprocessing>;

}  // namespace mgfl::targets
