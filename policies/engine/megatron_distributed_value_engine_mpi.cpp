// Critics over MPI with the optimizer's state sharded.
#include "mgfl/engine/base_engine.hpp"
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_ENGINES(, parallel::Mpi, Distributed, model::ValueModel);

static_assert(
    BaseEngine<ValueModelEngine<parallel::Mpi, optimizer::Bf16WithFp32Main, optimizer::Distributed>>);

}  // namespace mgfl
