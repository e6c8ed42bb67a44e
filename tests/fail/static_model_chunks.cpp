// Model chunks without pipeline stages.
// expected-error: mgfl: virtual_pipeline_model_parallel_size above 1 needs pipeline_model_parallel_size above 1.
// only-error
// needs LibTorch
#include "mgfl/policy/static_model.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

constexpr ModelSizes model{.num_layers = 12, .num_attention_heads = 8, .num_query_groups = 2, .ffn_hidden_size = 96};

#ifdef MGFL_TWIN
constexpr int stages = 2;
#else
constexpr int stages = 1;
#endif

struct Interleaved : DataParallel<Self> {
  static constexpr int pipeline_model_parallel_size = stages;
  static constexpr int virtual_pipeline_model_parallel_size = 3;
};
template struct mgfl::parallel::StaticModel<model, Interleaved>;
