// Language models in one process alone.
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_ENGINES(, parallel::Self, model::Decoder);

}  // namespace mgfl
