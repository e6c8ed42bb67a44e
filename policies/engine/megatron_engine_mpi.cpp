// Language models over MPI.
#include "mgfl/engine/base_engine.hpp"
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_ENGINES(, parallel::Mpi, Local, model::Decoder);

static_assert(BaseEngine<LanguageModelEngine<parallel::Mpi, optimizer::Bf16WithFp32Main>>);

}  // namespace mgfl
