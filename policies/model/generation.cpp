#include "policies/model/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/base/random.hpp"

namespace mgfl::model {

namespace {

/// The next token for one row of logits [vocab], given a uniform deviate in (0, 1].
std::int64_t choose(const Tensor& logits, const SamplingConfig& config, double deviate) {
  const auto row = logits.to(at::kDouble).contiguous();
  const auto* z = row.const_data_ptr<double>();
  const auto vocab = row.numel();
  if (config.greedy) return std::max_element(z, z + vocab) - z;

  std::vector<std::int64_t> order(static_cast<std::size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return z[a] > z[b]; });
  if (config.top_k > 0) order.resize(static_cast<std::size_t>(std::min(config.top_k, vocab)));
  std::vector<double> weight;
  double total = 0;
  for (auto id : order) {
    weight.push_back(std::exp((z[id] - z[order[0]]) / config.temperature));
    total += weight.back();
  }
  // The nucleus: the shortest head of the list that reaches top_p.
  double kept = 0;
  std::size_t count = 0;
  while (count < weight.size() && (count == 0 || kept < config.top_p * total)) kept += weight[count++];
  double left = deviate * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (left <= weight[i]) return order[i];
    left -= weight[i];
  }
  return order[count - 1];
}

}  // namespace

std::vector<std::vector<std::int64_t>> generate(const Decoder& model, const Batch& prompts,
                                                const SamplingConfig& config, std::int64_t first_stream) {
  NoGradGuard no_grad;
  const auto sequences = prompts.num_sequences();
  std::vector<std::vector<std::int64_t>> generated(static_cast<std::size_t>(sequences));
  if (sequences == 0 || config.max_new_tokens == 0) return generated;
  const auto* borders = prompts.cu_seqlens.const_data_ptr<std::int32_t>();
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    check_user(borders[s + 1] > borders[s], "generate: prompt ", s, " is empty; give it at least one token.");
    longest = std::max<std::int64_t>(longest, borders[s + 1] - borders[s]);
  }

  Workspace workspace;
  // Most continuations end long before max_new_tokens, so memory follows what has been said.
  auto cache = model.make_cache(sequences, longest + std::min<std::int64_t>(config.max_new_tokens, 128));
  auto logits = model.prefill(prompts, cache, workspace);
  const auto& ends = model.config().eos_token_ids;
  std::vector<std::int64_t> active(static_cast<std::size_t>(sequences));
  std::iota(active.begin(), active.end(), 0);
  const auto stream = stream_of("generate");
  for (std::int64_t step = 0; step < config.max_new_tokens; ++step) {
    std::vector<std::int64_t> going_on, next;
    for (std::size_t row = 0; row < active.size(); ++row) {
      const auto s = active[row];
      const auto deviate = uniform(config.seed, stream + static_cast<std::uint64_t>(first_stream + s),
                                   static_cast<std::uint64_t>(step));
      const auto id = choose(logits.select(0, static_cast<std::int64_t>(row)), config, deviate);
      generated[static_cast<std::size_t>(s)].push_back(id);
      if (std::find(ends.begin(), ends.end(), id) != ends.end()) continue;
      going_on.push_back(s);
      next.push_back(id);
    }
    if (going_on.empty() || step + 1 == config.max_new_tokens) break;
    active = std::move(going_on);
    auto ids = empty({static_cast<std::int64_t>(next.size())}, at::kLong);
    std::copy(next.begin(), next.end(), ids.data_ptr<std::int64_t>());
    if (longest + step + 1 > cache.capacity()) cache.grow(2 * cache.capacity());
    logits = model.decode(ids, active, cache, workspace);
  }
  return generated;
}

}  // namespace mgfl::model
