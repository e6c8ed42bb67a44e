// The passes of generation: whole prompts into a cache, then one token at a time.
#include <algorithm>
#include <array>

#include "mgfl/tensor/factory.hpp"
#include "policies/model/layer_pass.hpp"

namespace mgfl::model {

namespace {

/// Appends one position to each listed sequence and lets its queries look at all that the cache holds (window
/// allowing). qkv [n, row_width] after rotation; context [n, heads * head_dim].
void attend_to_cache(const Tensor& qkv, const std::vector<std::int64_t>& sequences,
                     const kernels::AttentionShape& shape, const std::vector<std::int64_t>& lengths,
                     Tensor& keys, Tensor& values, Tensor& context) {
  const auto& layout = shape.layout;
  const auto math = kernels::main_dtype(qkv.scalar_type());
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto sequence = sequences[row];
    const auto position = lengths[static_cast<std::size_t>(sequence)];
    const auto groups = qkv.select(0, static_cast<std::int64_t>(row))
                            .view({layout.groups, layout.queries_per_group + 2, layout.head_dim});
    auto k = keys.select(0, sequence), v = values.select(0, sequence);
    k.select(1, position).copy_(groups.select(1, layout.queries_per_group));
    v.select(1, position).copy_(groups.select(1, layout.queries_per_group + 1));
    const auto first = shape.window > 0 ? std::max<std::int64_t>(0, position + 1 - shape.window) : 0;
    const auto seen = position + 1 - first;
    const auto q = groups.narrow(1, 0, layout.queries_per_group).to(math);
    const auto scores = q.matmul(k.narrow(1, first, seen).to(math).transpose(1, 2)).mul(shape.scale);
    const auto mixed = scores.softmax(-1).matmul(v.narrow(1, first, seen).to(math));
    context.select(0, static_cast<std::int64_t>(row)).copy_(mixed.reshape({-1}));
  }
}

}  // namespace

Tensor Decoder::logits_of(const Tensor& hidden) const {
  const auto& tp = parallel_.tensor_parallel;
  auto own = empty({hidden.size(0), sizes_.vocab_rows}, hidden.scalar_type());
  kernels::linear(hidden, head().value, Tensor(), own);
  if (tp.size() == 1) return own.size(1) == config_.vocab_size ? own : own.narrow(1, 0, config_.vocab_size);
  auto all = empty({tp.size(), hidden.size(0), sizes_.vocab_rows}, hidden.scalar_type());
  tp.all_gather(own, all);
  return all.permute({1, 0, 2}).reshape({hidden.size(0), -1}).narrow(1, 0, config_.vocab_size);
}

Tensor Decoder::logits(Workspace& workspace) const { return logits_of(head_input(workspace)); }

KvCache Decoder::make_cache(std::int64_t sequences, std::int64_t capacity) const {
  KvCache cache;
  for (std::int64_t i = 0; i < config_.num_layers; ++i)
    for (auto* side : {&cache.keys, &cache.values})
      side->push_back(zeros({sequences, sizes_.qkv.groups, capacity, config_.kv_channels},
                            word_embeddings.value.scalar_type()));
  cache.lengths.assign(static_cast<std::size_t>(sequences), 0);
  return cache;
}

void KvCache::grow(std::int64_t capacity) {
  for (auto* side : {&keys, &values})
    for (auto& layer : *side) {
      auto larger = zeros({layer.size(0), layer.size(1), capacity, layer.size(3)}, layer.scalar_type());
      larger.narrow(2, 0, layer.size(2)).copy_(layer);
      layer = larger;
    }
}

Tensor Decoder::prefill(const Batch& prompts, KvCache& cache, Workspace& workspace) const {
  forward_whole_stream(prompts, workspace);
  const auto& layout = sizes_.qkv;
  const auto& run = workspace.activations;
  const auto* borders = prompts.cu_seqlens.const_data_ptr<std::int32_t>();
  auto last = empty({prompts.num_sequences(), config_.hidden_size}, run.hidden.scalar_type());
  for (std::int64_t s = 0; s < prompts.num_sequences(); ++s) {
    const std::int64_t begin = borders[s], length = borders[s + 1] - begin;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto rows = run.layers[i]
                            .qkv.narrow(0, begin, length)
                            .view({length, layout.groups, layout.queries_per_group + 2, layout.head_dim})
                            .transpose(0, 1);  // [groups, length, q.. k v, head_dim]
      cache.keys[i].select(0, s).narrow(1, 0, length).copy_(rows.select(2, layout.queries_per_group));
      cache.values[i].select(0, s).narrow(1, 0, length).copy_(rows.select(2, layout.queries_per_group + 1));
    }
    cache.lengths[static_cast<std::size_t>(s)] = length;
    last.select(0, s).copy_(run.hidden.select(0, begin + length - 1));
  }
  return logits_of(last);
}

Tensor Decoder::decode(const Tensor& ids, const std::vector<std::int64_t>& sequences, KvCache& cache,
                       Workspace& workspace) const {
  auto& arena = workspace.arena;
  arena.release({});
  const auto rows = ids.numel();
  const auto dtype = word_embeddings.value.scalar_type();
  const auto main = kernels::main_dtype(dtype);
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  Batch batch;
  batch.input_ids = ids;
  batch.position_ids = empty({rows}, at::kLong);
  auto* positions = batch.position_ids.data_ptr<std::int64_t>();
  for (auto sequence : sequences) *positions++ = cache.lengths[static_cast<std::size_t>(sequence)];
  auto cos = arena.take({rows, half}, main), sin = arena.take({rows, half}, main);
  rotary_tables(batch, inverse_frequencies_, config_.rope_scaling.attention_factor, cos, sin);

  std::array<LayerActivations, 2> saved{take_layer(arena, config_, sizes_, rows, rows, dtype),
                                        take_layer(arena, config_, sizes_, rows, rows, dtype)};
  Scratch scratch;
  scratch.normed = arena.take({rows, config_.hidden_size}, dtype);
  scratch.delta = arena.take({rows, config_.hidden_size}, dtype);
  scratch.activated = arena.take({rows, sizes_.ffn}, dtype);
  auto embedded = arena.take({rows, config_.hidden_size}, dtype),
       mlp_out = arena.take({rows, config_.hidden_size}, dtype);
  Tensor stream = embedded, delta;
  // The stream is whole on every rank here, for a step has few tokens to share.
  auto parallel = parallel_;
  parallel.sequence_parallel = false;
  with_region(parallel, rows, [&]<class Region>(const Region& region) {
    embed(region, ids, word_embeddings.value, sizes_, scratch, embedded);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      auto& layer = saved[i % 2];
      if (!delta.defined()) layer.input = embedded;
      const LayerPass<Region> pass{region, config_, sizes_, i, batch, cos, sin};
      pass.forward(layers[i], stream, delta, layer, scratch, mlp_out, [&] {
        attend_to_cache(layer.qkv, sequences, pass.attention_shape(), cache.lengths, cache.keys[i],
                        cache.values[i], layer.context);
      });
      stream = layer.middle;
      delta = mlp_out;
    }
  });
  for (auto sequence : sequences) ++cache.lengths[static_cast<std::size_t>(sequence)];
  auto sum = arena.take({rows, config_.hidden_size}, dtype),
       hidden = arena.take({rows, config_.hidden_size}, dtype);
  auto rstd = arena.take({rows}, main);
  kernels::rms_norm(stream, delta, final_layernorm.value, config_.layernorm_epsilon, sum, hidden, rstd);
  return logits_of(hidden);
}

}  // namespace mgfl::model
