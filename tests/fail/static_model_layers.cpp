// Five stages for twelve layers.
// expected-error: mgfl: pipeline_model_parallel_size does not divide num_layers.
// only-error
// needs LibTorch
#include "mgfl/policy/static_model.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

constexpr ModelSizes model{.num_layers = 12, .num_attention_heads = 8, .num_query_groups = 2, .ffn_hidden_size = 96};

#ifdef MGFL_TWIN
constexpr int size = 4;
#else
constexpr int size = 5;
#endif

struct Stages : DataParallel<Self> {
  static constexpr int pipeline_model_parallel_size = size;
};
template struct mgfl::parallel::StaticModel<model, Stages>;
