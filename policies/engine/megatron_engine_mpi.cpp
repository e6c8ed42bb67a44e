// Language models over MPI.
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_ENGINES(, parallel::Mpi, model::Decoder);

}  // namespace mgfl
