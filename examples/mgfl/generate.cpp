// `mgfl generate`: greedy or sampled continuations of given prompts.
#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/token_file.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/checkpoint/safetensors.hpp"
#include "policies/model/generation.hpp"

namespace mgfl::program {

namespace {

model::SamplingConfig sampling_config(const GenerateOptions& options) {
  model::SamplingConfig config;
  config.max_new_tokens = options.max_new_tokens;
  config.greedy = options.greedy();
  config.temperature = options.temperature.value_or(1.0);
  config.top_k = options.top_k.value_or(0);
  config.top_p = options.top_p.value_or(1.0);
  config.seed = static_cast<std::uint64_t>(options.seed);
  return config;
}

template <class P, class C>
int generate(const GenerateOptions& options, Rank<C>& rank) {
  auto config = engine_config(options.batch, options.parallel);
  config.forward_only = true;
  LanguageModelEngine<C, P> engine(model_config(options.model, options.seed, rank.world.rank()), config, {},
                                   constant_schedule(0), rank.context());
  initialize(engine, rank);

  const auto prompts = read_token_file(options.input, "", engine.config().vocab_size).packed.batch;
  const auto sequences = prompts.num_sequences();
  const auto [first, last] = share_of(sequences, rank.data_parallel());
  const auto share = sequences_of(prompts, first, last);
  const auto mine = model::generate(engine.module(), share, sampling_config(options), first);

  // Continuations are unlike in length: every rank fills its rows of a padded table in, with id + 1 so that 0
  // means nothing.
  auto longest = zeros({1}, at::kLong).fill_(1);
  for (const auto& tokens : mine) longest.clamp_min_(static_cast<std::int64_t>(tokens.size()));
  rank.data_parallel().all_reduce(longest, ReduceOp::max);
  auto table = zeros({sequences, longest.template item<std::int64_t>()}, at::kLong);
  auto* cells = table.template data_ptr<std::int64_t>();
  for (std::size_t s = 0; s < mine.size(); ++s)
    for (std::size_t t = 0; t < mine[s].size(); ++t)
      cells[(first + static_cast<std::int64_t>(s)) * table.size(1) + static_cast<std::int64_t>(t)] =
          mine[s][t] + 1;
  rank.data_parallel().all_reduce(table, ReduceOp::sum);
  if (rank.is_first()) {
    const auto flat = table.reshape({-1});
    auto lengths = table.gt(0).sum(1).cumsum(0);
    auto cu_seqlens = zeros({sequences + 1}, at::kInt);
    cu_seqlens.narrow(0, 1, sequences).copy_(lengths);
    checkpoint::write_safetensors(options.output, std::vector<std::pair<std::string, Tensor>>{
                                                      {"output_ids", flat.masked_select(flat.gt(0)).sub(1)},
                                                      {"cu_seqlens", cu_seqlens}});
  }
  rank.world.barrier();
  return 0;
}

}  // namespace

template <class C>
int run_generate(const GenerateOptions& options, Rank<C>& rank) {
  return with_precision(options.precision,
                        [&](auto p) { return generate<typename decltype(p)::type>(options, rank); });
}

template int run_generate(const GenerateOptions&, Rank<parallel::Self>&);
template int run_generate(const GenerateOptions&, Rank<parallel::Mpi>&);

}  // namespace mgfl::program
