// A model without one of its sizes.
// expected-error: mgfl: StaticModel needs every size of its model, those of experts where there are any.
// only-error
// needs LibTorch
#include "mgfl/policy/static_model.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

#ifdef MGFL_TWIN
constexpr ModelSizes model{
    .num_layers = 12, .num_attention_heads = 8, .num_query_groups = 2, .ffn_hidden_size = 96};
#else
constexpr ModelSizes model{.num_layers = 12, .num_attention_heads = 8, .num_query_groups = 2};
#endif
template struct mgfl::parallel::StaticModel<model, DataParallel<Self>>;
