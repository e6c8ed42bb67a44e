// Three tensor-parallel ranks for two kv heads.
// expected-error: mgfl: of tensor_model_parallel_size and num_query_groups neither divides the other.
// only-error
// needs LibTorch
#include "mgfl/policy/static_model.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

constexpr ModelSizes model{.num_layers = 12, .num_attention_heads = 12, .num_query_groups = 2, .ffn_hidden_size = 96};

#ifdef MGFL_TWIN
constexpr int size = 4;
#else
constexpr int size = 3;
#endif
template struct mgfl::parallel::StaticModel<model, Megatron<Tp<size>, Pp<1>, Cp<1>, Ep<1>, Self>>;
