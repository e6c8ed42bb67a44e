/// Names of the overridable things around the training loop: the second root, `mgfl.training`.
#pragma once

#include "mgfl/override/target.hpp"

namespace mgfl::targets {

struct get_device : target<"mgfl.training.dist_signal_handler.get_device"> {};
struct compile_dependencies : target<"mgfl.training.initialize._compile_dependencies"> {};

using training_targets = list<get_device, compile_dependencies>;

}  // namespace mgfl::targets
