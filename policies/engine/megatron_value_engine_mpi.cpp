// Critics over MPI.
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_ENGINES(, parallel::Mpi, model::ValueModel);

}  // namespace mgfl
