// Engines over MPI.
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Fp64);
MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Fp32);
MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Bf16WithFp32Main);
MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Fp16WithLossScaler);

}  // namespace mgfl
