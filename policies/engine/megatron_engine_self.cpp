// Language models in one process alone.
#include "mgfl/engine/base_engine.hpp"
#include "policies/engine/megatron_engine.hpp"

namespace mgfl {

MGFL_ENGINES(, parallel::Self, Local, model::Decoder);

static_assert(BaseEngine<LanguageModelEngine<parallel::Self, optimizer::Bf16WithFp32Main>>);

}  // namespace mgfl
