#include "policies/model/decoder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/activation.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/kernels/main_dtype.hpp"
#include "policies/model/initialize.hpp"
#include "policies/model/linear_cross_entropy.hpp"
#include "policies/training/initialize.hpp"

namespace mgfl::model {

namespace {

using kernels::main_dtype;
using parallel::NoTensorParallel;
template <class P>
using act = Act<P>;

template <class Placement>
Param<Placement> matrix(std::string name, std::int64_t rows, std::int64_t columns, double init_std) {
  Param<Placement> param;
  param.desc = {std::move(name), {rows, columns}, placement_kind<Placement>, true, init_std, 0.0};
  return param;
}

template <class Placement>
Param<Placement> vector(std::string name, std::int64_t size, double init_value) {
  Param<Placement> param;
  param.desc = {std::move(name), {size}, placement_kind<Placement>, false, 0.0, init_value};
  return param;
}

kernels::QkvLayout qkv_layout(const TransformerConfig& config) {
  return {config.num_query_groups, config.num_attention_heads / config.num_query_groups, config.kv_channels};
}

kernels::AttentionShape attention_shape(const TransformerConfig& config, std::size_t layer) {
  return {qkv_layout(config), 1.0 / std::sqrt(static_cast<double>(config.kv_channels)),
          layer < config.window_size.size() ? config.window_size[layer] : 0};
}

template <class OptionalParam>
Tensor value_or_none(const OptionalParam& param) {
  return param ? param->value : Tensor();
}

/// cos and sin of every token's angles, [tokens, head_dim / 2], computed in double.
void rotary_tables(const Batch& batch, const std::vector<double>& inverse_frequencies, double factor,
                   Tensor& cos, Tensor& sin) {
  const auto tokens = batch.num_tokens();
  const auto half = static_cast<std::int64_t>(inverse_frequencies.size());
  std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
  if (batch.position_ids.defined()) {
    const auto* given = batch.position_ids.const_data_ptr<std::int64_t>();
    std::copy(given, given + tokens, positions.begin());
  } else {
    const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
    for (std::int64_t s = 0; s < batch.num_sequences(); ++s)
      for (auto t = borders[s]; t < borders[s + 1]; ++t)
        positions[static_cast<std::size_t>(t)] = t - borders[s];
  }
  const auto fill = [&](auto* cos_row, auto* sin_row) {
    using M = std::remove_reference_t<decltype(*cos_row)>;
    for (auto position : positions) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * inverse_frequencies[static_cast<std::size_t>(i)];
        cos_row[i] = static_cast<M>(std::cos(angle) * factor);
        sin_row[i] = static_cast<M>(std::sin(angle) * factor);
      }
      cos_row += half;
      sin_row += half;
    }
  };
  if (cos.scalar_type() == at::kDouble)
    fill(cos.data_ptr<double>(), sin.data_ptr<double>());
  else
    fill(cos.data_ptr<float>(), sin.data_ptr<float>());
}

/// Tensors that every layer of one pass uses again: nothing in them outlives its layer.
struct Scratch {
  Tensor normed, rstd, delta, activated;           // forward
  Tensor d_activated, d_context, d_qkv, d_normed;  // backward
};

/// Layer blocks as pairs. `residual` + `delta` is the stream that enters; on return `residual` is the stream
/// before the MLP and `delta` the MLP's output.
struct LayerPass {
  const TransformerConfig& config;
  std::size_t index;
  const Batch& batch;
  const Tensor& cos;
  const Tensor& sin;
  NoTensorParallel tp;

  /// x w^T with w split over output rows: every rank computes its own columns.
  static void column_parallel(const act<placement::Replicated>& x, const Tensor& w, const Tensor& bias,
                              Tensor& y) {
    kernels::linear(x.tensor, w, bias, y);
  }

  /// x w^T with w split over input columns: a summand, made whole by the group; the bias is added once.
  act<placement::Replicated> row_parallel(const Tensor& x, const Tensor& w, const Tensor& bias,
                                          Tensor& y) const {
    kernels::linear(x, w, bias, y);
    return parallel::reduce_from_tensor_model_parallel_region(tp, act<placement::Partial>{y});
  }

  void forward(const DecoderLayer& layer, const Tensor& stream, const Tensor& delta, LayerActivations& saved,
               Scratch& scratch, Tensor& mlp_out) const {
    forward(layer, stream, delta, saved, scratch, mlp_out, [&] {
      kernels::attention(saved.qkv, batch.cu_seqlens, attention_shape(config, index), saved.context,
                         saved.lse);
    });
  }

  /// The same with attention of the caller's: `attend()` turns saved.qkv into saved.context.
  template <class Attend>
  void forward(const DecoderLayer& layer, const Tensor& stream, const Tensor& delta, LayerActivations& saved,
               Scratch& scratch, Tensor& mlp_out, Attend&& attend) const {
    const auto& attention = layer.self_attention;
    kernels::rms_norm(stream, delta, layer.input_layernorm_weight.value, config.layernorm_epsilon,
                      saved.input, scratch.normed, saved.input_rstd);
    auto& projected = config.qk_layernorm ? saved.qkv_before_norm : saved.qkv;
    column_parallel({scratch.normed}, attention.linear_qkv_weight.value,
                    value_or_none(attention.linear_qkv_bias), projected);
    kernels::qk_norm_rotary(projected, value_or_none(attention.q_layernorm_weight),
                            value_or_none(attention.k_layernorm_weight), config.layernorm_epsilon, cos, sin,
                            qkv_layout(config), saved.qkv, saved.qk_rstd);
    attend();
    const auto attended = row_parallel(saved.context, attention.linear_proj_weight.value,
                                       value_or_none(attention.linear_proj_bias), scratch.delta);
    kernels::rms_norm(saved.input, attended.tensor, layer.pre_mlp_layernorm_weight.value,
                      config.layernorm_epsilon, saved.middle, scratch.normed, saved.middle_rstd);
    column_parallel({scratch.normed}, layer.mlp.linear_fc1_weight.value,
                    value_or_none(layer.mlp.linear_fc1_bias), saved.gate_up);
    kernels::swiglu(saved.gate_up, scratch.activated);
    row_parallel(scratch.activated, layer.mlp.linear_fc2_weight.value,
                 value_or_none(layer.mlp.linear_fc2_bias), mlp_out);
  }

  /// d_stream: gradient of the layer's output stream on entry, of its input stream on exit.
  void backward(DecoderLayer& layer, LayerActivations& saved, Scratch& scratch, Tensor& d_stream) const {
    auto& mlp = layer.mlp;
    kernels::linear_input_grad(d_stream, mlp.linear_fc2_weight.value, scratch.d_activated);
    kernels::swiglu_backward(scratch.d_activated, saved.gate_up, saved.gate_up, scratch.activated);
    kernels::linear_weight_grad(d_stream, scratch.activated, mlp.linear_fc2_weight.main_grad);
    if (mlp.linear_fc2_bias) kernels::bias_grad(d_stream, mlp.linear_fc2_bias->main_grad);
    norm_again(saved.middle, layer.pre_mlp_layernorm_weight.value, scratch);
    kernels::linear_weight_grad(saved.gate_up, scratch.normed, mlp.linear_fc1_weight.main_grad);
    if (mlp.linear_fc1_bias) kernels::bias_grad(saved.gate_up, mlp.linear_fc1_bias->main_grad);
    input_grad(saved.gate_up, mlp.linear_fc1_weight.value, scratch);
    kernels::rms_norm_backward(scratch.d_normed, saved.middle, layer.pre_mlp_layernorm_weight.value,
                               saved.middle_rstd, d_stream, d_stream,
                               layer.pre_mlp_layernorm_weight.main_grad);

    auto& attention = layer.self_attention;
    kernels::linear_weight_grad(d_stream, saved.context, attention.linear_proj_weight.main_grad);
    if (attention.linear_proj_bias) kernels::bias_grad(d_stream, attention.linear_proj_bias->main_grad);
    kernels::linear_input_grad(d_stream, attention.linear_proj_weight.value, scratch.d_context);
    kernels::attention_backward(scratch.d_context, saved.qkv, saved.context, saved.lse, batch.cu_seqlens,
                                attention_shape(config, index), scratch.d_qkv);
    Tensor none;
    kernels::qk_norm_rotary_backward(
        scratch.d_qkv, saved.qkv_before_norm, value_or_none(attention.q_layernorm_weight),
        value_or_none(attention.k_layernorm_weight), cos, sin, saved.qk_rstd, qkv_layout(config),
        attention.q_layernorm_weight ? attention.q_layernorm_weight->main_grad : none,
        attention.k_layernorm_weight ? attention.k_layernorm_weight->main_grad : none);
    norm_again(saved.input, layer.input_layernorm_weight.value, scratch);
    kernels::linear_weight_grad(scratch.d_qkv, scratch.normed, attention.linear_qkv_weight.main_grad);
    if (attention.linear_qkv_bias) kernels::bias_grad(scratch.d_qkv, attention.linear_qkv_bias->main_grad);
    input_grad(scratch.d_qkv, attention.linear_qkv_weight.value, scratch);
    kernels::rms_norm_backward(scratch.d_normed, saved.input, layer.input_layernorm_weight.value,
                               saved.input_rstd, d_stream, d_stream, layer.input_layernorm_weight.main_grad);
  }

 private:
  void norm_again(const Tensor& stream, const Tensor& weight, Scratch& scratch) const {
    Tensor none;
    kernels::rms_norm(stream, Tensor(), weight, config.layernorm_epsilon, none, scratch.normed, scratch.rstd);
  }

  /// scratch.d_normed = dy w, made whole over the group.
  void input_grad(const Tensor& dy, const Tensor& weight, Scratch& scratch) const {
    kernels::linear_input_grad(dy, weight, scratch.d_normed);
    parallel::reduce_input_grad(tp, act<placement::Partial>{scratch.d_normed});
  }
};

/// Memory for one layer's activations.
LayerActivations take_layer(Arena& arena, const TransformerConfig& config, std::int64_t tokens,
                            at::ScalarType dtype) {
  const auto layout = qkv_layout(config);
  const auto main = main_dtype(dtype);
  LayerActivations saved;
  saved.input = arena.take({tokens, config.hidden_size}, dtype);
  saved.input_rstd = arena.take({tokens}, main);
  if (config.qk_layernorm) {
    saved.qkv_before_norm = arena.take({tokens, layout.row_width()}, dtype);
    saved.qk_rstd = arena.take({tokens, layout.heads() + layout.groups}, main);
  }
  saved.qkv = arena.take({tokens, layout.row_width()}, dtype);
  saved.context = arena.take({tokens, layout.heads() * layout.head_dim}, dtype);
  saved.lse = arena.take({layout.heads(), tokens}, main);
  saved.middle = arena.take({tokens, config.hidden_size}, dtype);
  saved.middle_rstd = arena.take({tokens}, main);
  saved.gate_up = arena.take({tokens, 2 * config.ffn_hidden_size}, dtype);
  return saved;
}

/// Appends one position to each listed sequence and lets its queries look at all that the cache holds (window
/// allowing). qkv [n, row_width] after rotation; context [n, heads * head_dim].
void attend_to_cache(const Tensor& qkv, const std::vector<std::int64_t>& sequences,
                     const kernels::AttentionShape& shape, const std::vector<std::int64_t>& lengths,
                     Tensor& keys, Tensor& values, Tensor& context) {
  const auto& layout = shape.layout;
  const auto math = main_dtype(qkv.scalar_type());
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

std::string Decoder::enable_fused_kernels() { return training::_compile_dependencies(); }

Decoder::Decoder(const TransformerConfig& config)
    : word_embeddings(matrix<placement::Vocab>("embedding.word_embeddings.weight", config.vocab_size,
                                               config.hidden_size, config.init_method_std)),
      final_layernorm(
          vector<placement::Replicated>("decoder.final_layernorm.weight", config.hidden_size, 1.0)),
      config_(config),
      inverse_frequencies_(rotary_inverse_frequencies(config)) {
  const auto width = qkv_layout(config).row_width();
  const auto context = config.num_attention_heads * config.kv_channels;
  const auto std = config.init_method_std;
  const auto output_std =
      std / std::sqrt(2.0 * static_cast<double>(config.num_layers));  // Megatron's output layers
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const auto prefix = concat("decoder.layers.", i, ".");
    const auto attention = prefix + "self_attention.";
    const auto mlp = prefix + "mlp.";
    DecoderLayer layer;
    layer.input_layernorm_weight =
        vector<placement::Replicated>(prefix + "input_layernorm.weight", config.hidden_size, 1.0);
    layer.self_attention.linear_qkv_weight =
        matrix<placement::Qkv>(attention + "linear_qkv.weight", width, config.hidden_size, std);
    if (config.add_qkv_bias)
      layer.self_attention.linear_qkv_bias =
          vector<placement::Qkv>(attention + "linear_qkv.bias", width, 0.0);
    if (config.qk_layernorm) {
      layer.self_attention.q_layernorm_weight =
          vector<placement::Replicated>(attention + "q_layernorm.weight", config.kv_channels, 1.0);
      layer.self_attention.k_layernorm_weight =
          vector<placement::Replicated>(attention + "k_layernorm.weight", config.kv_channels, 1.0);
    }
    layer.self_attention.linear_proj_weight =
        matrix<placement::Row>(attention + "linear_proj.weight", config.hidden_size, context, output_std);
    if (config.add_proj_bias)
      layer.self_attention.linear_proj_bias =
          vector<placement::Replicated>(attention + "linear_proj.bias", config.hidden_size, 0.0);
    layer.pre_mlp_layernorm_weight =
        vector<placement::Replicated>(prefix + "pre_mlp_layernorm.weight", config.hidden_size, 1.0);
    layer.mlp.linear_fc1_weight = matrix<placement::GateUp>(
        mlp + "linear_fc1.weight", 2 * config.ffn_hidden_size, config.hidden_size, std);
    if (config.add_mlp_bias)
      layer.mlp.linear_fc1_bias =
          vector<placement::GateUp>(mlp + "linear_fc1.bias", 2 * config.ffn_hidden_size, 0.0);
    layer.mlp.linear_fc2_weight = matrix<placement::Row>(mlp + "linear_fc2.weight", config.hidden_size,
                                                         config.ffn_hidden_size, output_std);
    if (config.add_mlp_bias)
      layer.mlp.linear_fc2_bias =
          vector<placement::Replicated>(mlp + "linear_fc2.bias", config.hidden_size, 0.0);
    layers.push_back(std::move(layer));
  }
  if (config.value_head) {
    value_head.emplace();
    value_head->weight = matrix<placement::Replicated>("output_layer.weight", 1, config.hidden_size, std);
    if (config.add_value_head_bias)
      value_head->bias = vector<placement::Replicated>("output_layer.bias", 1, 0.0);
  } else if (!config.share_embeddings_and_output_weights) {
    output_layer =
        matrix<placement::Vocab>("output_layer.weight", config.vocab_size, config.hidden_size, std);
  }
}

void Decoder::forward(const Batch& batch, Workspace& workspace, bool keep) const {
  auto& arena = workspace.arena;
  arena.release({});
  workspace.activations = {};
  auto& run = workspace.activations;
  run.batch = batch;
  const auto tokens = batch.num_tokens();
  const auto dtype = word_embeddings.value.scalar_type();
  const auto main = main_dtype(dtype);
  const auto hidden = config_.hidden_size;
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());

  run.cos = arena.take({tokens, half}, main);
  run.sin = arena.take({tokens, half}, main);
  rotary_tables(batch, inverse_frequencies_, config_.rope_scaling.attention_factor, run.cos, run.sin);

  run.final_input = arena.take({tokens, hidden}, dtype);
  run.final_rstd = arena.take({tokens}, main);
  run.hidden = arena.take({tokens, hidden}, dtype);
  auto embedded = arena.take({tokens, hidden}, dtype);
  auto mlp_out = arena.take({tokens, hidden}, dtype);
  const auto start = arena.mark();
  Scratch scratch;
  scratch.normed = arena.take({tokens, hidden}, dtype);
  scratch.delta = arena.take({tokens, hidden}, dtype);
  scratch.activated = arena.take({tokens, config_.ffn_hidden_size}, dtype);

  kernels::embedding(batch.input_ids, word_embeddings.value, 0, embedded);
  // The stream that enters a layer is `stream` + `delta`; the first layer's delta is nothing, so its input is
  // a copy.
  Tensor stream = embedded, delta;
  LayerActivations saved;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    // Without keep two sets take turns: a layer reads its predecessor's `middle` while it writes its own.
    if (keep || i < 2) run.layers.push_back(take_layer(arena, config_, tokens, dtype));
    saved = run.layers[keep ? i : i % 2];
    if (!delta.defined()) saved.input = embedded;
    const LayerPass pass{config_, i, batch, run.cos, run.sin, {}};
    pass.forward(layers[i], stream, delta, saved, scratch, mlp_out);
    if (keep) run.layers[i] = saved;
    stream = saved.middle;
    delta = mlp_out;
  }
  kernels::rms_norm(stream, delta, final_layernorm.value, config_.layernorm_epsilon, run.final_input,
                    run.hidden, run.final_rstd);
  if (!keep) {
    run.layers.clear();
    arena.release(start);
  }
}

LanguageModelOutput Decoder::head_forward(Workspace& workspace, const HeadRequest& request) const {
  auto& run = workspace.activations;
  return linear_cross_entropy(run.hidden, head().value, run.batch, request, workspace.arena, run.head);
}

void Decoder::head_backward(Workspace& workspace, const LanguageModelOutput& d_output) {
  auto& run = workspace.activations;
  run.d_hidden = workspace.arena.take(run.hidden.sizes(), run.hidden.scalar_type());
  linear_cross_entropy_backward(run.hidden, head().value, run.batch, run.head, d_output, workspace.arena,
                                run.d_hidden, head().main_grad);
}

LanguageModelOutput Decoder::head_forward_backward(Workspace& workspace, const Tensor& d_log_prob,
                                                   const HeadRequest& request) {
  auto& run = workspace.activations;
  run.d_hidden = workspace.arena.take(run.hidden.sizes(), run.hidden.scalar_type());
  return linear_cross_entropy_forward_backward(run.hidden, head().value, run.batch, d_log_prob, request,
                                               workspace.arena, run.d_hidden, head().main_grad);
}

Tensor Decoder::head_logits(Workspace& workspace) const {
  const auto main = main_dtype(workspace.activations.hidden.scalar_type());
  const auto scale = logit_scale(workspace.activations.batch, main);
  return logits(workspace).to(main).mul(scale.unsqueeze(1));
}

LanguageModelOutput Decoder::output_of_logits(const Tensor& logits, const Batch& batch,
                                              const HeadRequest& request) {
  const auto log_p = logits.log_softmax(-1);
  const auto ignored = batch.labels.eq(ignore_index);
  LanguageModelOutput output;
  output.log_probs =
      log_p.gather(1, batch.labels.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1).masked_fill(ignored, 0.0);
  if (request.entropy) output.entropy = log_p.exp().mul(log_p).sum(-1).neg();
  if (request.sum_pi_squared) output.sum_pi_squared = log_p.mul(2.0).exp().sum(-1);
  return output;
}

void Decoder::head_logits_backward(Workspace& workspace, const Tensor& d_logits) {
  auto& run = workspace.activations;
  run.d_hidden = workspace.arena.take(run.hidden.sizes(), run.hidden.scalar_type());
  const auto scale = logit_scale(run.batch, d_logits.scalar_type());
  const auto d_rows = d_logits.mul(scale.unsqueeze(1)).to(run.hidden.scalar_type());
  kernels::linear_input_grad(d_rows, head().value, run.d_hidden);
  kernels::linear_weight_grad(d_rows, run.hidden, head().main_grad);
}

void Decoder::backward(Workspace& workspace) {
  auto& arena = workspace.arena;
  auto& run = workspace.activations;
  const auto tokens = run.batch.num_tokens();
  const auto dtype = run.hidden.scalar_type();
  const auto main = main_dtype(dtype);
  const auto layout = qkv_layout(config_);
  Scratch scratch;
  scratch.normed = arena.take({tokens, config_.hidden_size}, dtype);
  scratch.rstd = arena.take({tokens}, main);
  scratch.activated = arena.take({tokens, config_.ffn_hidden_size}, dtype);
  scratch.d_activated = arena.take({tokens, config_.ffn_hidden_size}, dtype);
  scratch.d_context = arena.take({tokens, layout.heads() * layout.head_dim}, dtype);
  scratch.d_qkv = arena.take({tokens, layout.row_width()}, dtype);
  scratch.d_normed = arena.take({tokens, config_.hidden_size}, dtype);

  auto& d_stream = run.d_hidden;
  kernels::rms_norm_backward(d_stream, run.final_input, final_layernorm.value, run.final_rstd, Tensor(),
                             d_stream, final_layernorm.main_grad);
  for (std::size_t i = layers.size(); i-- > 0;) {
    const LayerPass pass{config_, i, run.batch, run.cos, run.sin, {}};
    pass.backward(layers[i], run.layers[i], scratch, d_stream);
  }
  kernels::embedding_backward(run.batch.input_ids, d_stream, 0, embedding_grad());
}

Tensor Decoder::logits(Workspace& workspace) const {
  const auto& hidden = workspace.activations.hidden;
  auto out = empty({hidden.size(0), config_.vocab_size}, hidden.scalar_type());
  kernels::linear(hidden, head().value, Tensor(), out);
  return out;
}

KvCache Decoder::make_cache(std::int64_t sequences, std::int64_t capacity) const {
  KvCache cache;
  for (std::int64_t i = 0; i < config_.num_layers; ++i)
    for (auto* side : {&cache.keys, &cache.values})
      side->push_back(zeros({sequences, config_.num_query_groups, capacity, config_.kv_channels},
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
  forward(prompts, workspace, true);
  const auto layout = qkv_layout(config_);
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
  auto out = empty({prompts.num_sequences(), config_.vocab_size}, run.hidden.scalar_type());
  kernels::linear(last, head().value, Tensor(), out);
  return out;
}

Tensor Decoder::decode(const Tensor& ids, const std::vector<std::int64_t>& sequences, KvCache& cache,
                       Workspace& workspace) const {
  auto& arena = workspace.arena;
  arena.release({});
  const auto rows = ids.numel();
  const auto dtype = word_embeddings.value.scalar_type();
  const auto main = main_dtype(dtype);
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  Batch batch;
  batch.input_ids = ids;
  batch.position_ids = empty({rows}, at::kLong);
  auto* positions = batch.position_ids.data_ptr<std::int64_t>();
  for (auto sequence : sequences) *positions++ = cache.lengths[static_cast<std::size_t>(sequence)];
  auto cos = arena.take({rows, half}, main), sin = arena.take({rows, half}, main);
  rotary_tables(batch, inverse_frequencies_, config_.rope_scaling.attention_factor, cos, sin);

  std::array<LayerActivations, 2> saved{take_layer(arena, config_, rows, dtype),
                                        take_layer(arena, config_, rows, dtype)};
  Scratch scratch;
  scratch.normed = arena.take({rows, config_.hidden_size}, dtype);
  scratch.delta = arena.take({rows, config_.hidden_size}, dtype);
  scratch.activated = arena.take({rows, config_.ffn_hidden_size}, dtype);
  auto embedded = arena.take({rows, config_.hidden_size}, dtype),
       mlp_out = arena.take({rows, config_.hidden_size}, dtype);
  kernels::embedding(ids, word_embeddings.value, 0, embedded);
  Tensor stream = embedded, delta;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto& layer = saved[i % 2];
    if (!delta.defined()) layer.input = embedded;
    const LayerPass pass{config_, i, batch, cos, sin, {}};
    pass.forward(layers[i], stream, delta, layer, scratch, mlp_out, [&] {
      attend_to_cache(layer.qkv, sequences, attention_shape(config_, i), cache.lengths, cache.keys[i],
                      cache.values[i], layer.context);
    });
    stream = layer.middle;
    delta = mlp_out;
  }
  for (auto sequence : sequences) ++cache.lengths[static_cast<std::size_t>(sequence)];
  auto sum = arena.take({rows, config_.hidden_size}, dtype),
       hidden = arena.take({rows, config_.hidden_size}, dtype);
  auto rstd = arena.take({rows}, main);
  kernels::rms_norm(stream, delta, final_layernorm.value, config_.layernorm_epsilon, sum, hidden, rstd);
  auto out = empty({rows, config_.vocab_size}, dtype);
  kernels::linear(hidden, head().value, Tensor(), out);
  return out;
}

void Decoder::initialize(std::uint64_t seed, std::span<const std::string> names) {
  const std::set<std::string_view> wanted(names.begin(), names.end());
  std::vector<ParamRef> chosen;
  for (const auto& param : parameters())
    if (wanted.count(param.desc->name) != 0) chosen.push_back(param);
  initialize_parameters(chosen, seed);
}

void Decoder::finalize_tied_grads() {
  if (is_tied()) word_embeddings.main_grad.add_(tied_embedding_grad_);
}

void Decoder::allocate_grads(at::ScalarType main_dtype) {
  if (is_tied()) tied_embedding_grad_ = zeros(word_embeddings.desc.shape, main_dtype);
}

void Decoder::move_grads(c10::DeviceType device) {
  if (tied_embedding_grad_.defined()) tied_embedding_grad_ = tied_embedding_grad_.to(c10::Device(device));
}

void Decoder::zero_grads() {
  if (tied_embedding_grad_.defined()) tied_embedding_grad_.zero_();
}

}  // namespace mgfl::model
