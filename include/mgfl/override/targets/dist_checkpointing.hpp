/// Names of the overridable things around writing checkpoints.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct preload_tensors : target<"mgfl.core.dist_checkpointing.strategies.filesystem_async.preload_tensors"> {
};

using dist_checkpointing_targets = list<preload_tensors>;

}  // namespace mgfl::targets
