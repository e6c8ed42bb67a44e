#include "mgfl/parallel/model_fit.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/parallel/rank_grid.hpp"

namespace mgfl::parallel {

namespace {

bool tensor_parallel_fits(const ModelSizes& sizes, const Extents& extents) {
  return fit::attention_heads(sizes, extents) && fit::query_groups(sizes, extents) &&
         fit::ffn(sizes, extents);
}

/// Those that a world of so many ranks can have.
std::vector<int> fitting_tensor_parallel_sizes(const ModelSizes& sizes, int world) {
  std::vector<int> fitting;
  const auto most = std::min<std::int64_t>(world, sizes.num_attention_heads);
  for (Extents other{.tp = 1}; other.tp <= most; ++other.tp)
    if (world % other.tp == 0 && tensor_parallel_fits(sizes, other)) fitting.push_back(other.tp);
  return fitting;
}

}  // namespace

void check_model_fits(const ModelSizes& m, const Extents& e) {
  const RankGrid grid(e);  // refuses what is no layout
  check_user(fit::sizes_are_there(m), "layout: a model with num_layers ", m.num_layers,
             ", num_attention_heads ", m.num_attention_heads, ", num_query_groups ", m.num_query_groups,
             ", ffn_hidden_size ", m.ffn_hidden_size, ", num_moe_experts ", m.num_moe_experts,
             " and moe_ffn_hidden_size ", m.moe_ffn_hidden_size,
             " is none; give every size, those of experts where there are any.");
  std::vector<std::string> misfits;
  if (!fit::attention_heads(m, e))
    misfits.push_back(concat("tensor-model-parallel-size ", e.tp, " does not divide num_attention_heads ",
                             m.num_attention_heads));
  if (!fit::query_groups(m, e))
    misfits.push_back(concat("of tensor-model-parallel-size ", e.tp, " and num_query_groups ",
                             m.num_query_groups, " (kv heads) neither divides the other"));
  if (!fit::ffn(m, e))
    misfits.push_back(
        concat("tensor-model-parallel-size ", e.tp, " does not divide ffn_hidden_size ", m.ffn_hidden_size));
  if (!tensor_parallel_fits(m, e))
    misfits.back() +=
        concat(" (sizes that fit ", grid.extents().world(),
               " ranks: ", some_of(fitting_tensor_parallel_sizes(m, grid.extents().world())), ")");
  if (!fit::layers(m, e))
    misfits.push_back(concat("pipeline-model-parallel-size ", e.pp,
                             " x virtual-pipeline-model-parallel-size ", e.vpp,
                             " does not divide num_layers ", m.num_layers));
  if (!fit::experts(m, e))
    misfits.push_back(concat("expert-model-parallel-size ", e.ep, " does not divide num_moe_experts ",
                             m.num_moe_experts, ", or there are none"));
  if (!fit::expert_ffn(m, e))
    misfits.push_back(concat("expert-tensor-parallel-size ", e.etp, " does not divide moe_ffn_hidden_size ",
                             m.moe_ffn_hidden_size));
  check_user(misfits.empty(), "the layout does not fit the model: ", join(misfits, "; "),
             ". Choose sizes that do, or another model.");
}

void check_static_model(const ModelSizes& compiled, const ModelSizes& given) {
  for (const auto& [name, size] : {std::pair("num_layers", &ModelSizes::num_layers),
                                   {"num_attention_heads", &ModelSizes::num_attention_heads},
                                   {"num_query_groups", &ModelSizes::num_query_groups},
                                   {"ffn_hidden_size", &ModelSizes::ffn_hidden_size},
                                   {"num_moe_experts", &ModelSizes::num_moe_experts},
                                   {"moe_ffn_hidden_size", &ModelSizes::moe_ffn_hidden_size}})
    check_user(compiled.*size == given.*size, "the engine was compiled for a model with ", name, " ",
               compiled.*size, ", this one has ", given.*size, "; use a policy without StaticModel<...>.");
}

}  // namespace mgfl::parallel
