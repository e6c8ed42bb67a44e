// Engines of one process alone.
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Fp64);
MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Fp32);
MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Bf16WithFp32Main);
MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Fp16WithLossScaler);

}  // namespace mgfl
