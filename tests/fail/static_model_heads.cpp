// Three tensor-parallel ranks for eight heads.
// expected-error: mgfl: tensor_model_parallel_size does not divide num_attention_heads.
// only-error
// needs LibTorch
#include "mgfl/policy/static_model.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

constexpr ModelSizes model{.num_layers = 12, .num_attention_heads = 8, .num_query_groups = 6, .ffn_hidden_size = 96};

#ifdef MGFL_TWIN
constexpr int size = 2;
#else
constexpr int size = 3;
#endif
template struct mgfl::parallel::StaticModel<model, Megatron<Tp<size>, Pp<1>, Cp<1>, Ep<1>, Self>>;
