#include "policies/model/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/activation.hpp"
#include "mgfl/parallel/model_fit.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/distributed/non_tensor_parallel_grads.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/kernels/main_dtype.hpp"
#include "policies/model/initialize.hpp"
#include "policies/model/layer_pass.hpp"
#include "policies/model/linear_cross_entropy.hpp"
#include "policies/training/initialize.hpp"

namespace mgfl::model {

namespace {

using kernels::main_dtype;

/// Writes the parameters' descriptions for this rank.
struct Describe {
  const TransformerConfig& config;
  const parallel::ModelParallel& parallel;

  template <class Placement>
  Param<Placement> matrix(std::string name, std::int64_t rows, std::int64_t columns, double init_std) const {
    return describe<Placement>(std::move(name), {rows, columns}, init_std, 0.0);
  }
  template <class Placement>
  Param<Placement> vector(std::string name, std::int64_t size, double init_value) const {
    return describe<Placement>(std::move(name), {size}, 0.0, init_value);
  }

  /// Works on the residual stream, of which a rank may have its own tokens only.
  Param<placement::Replicated> stream_vector(std::string name, double init_value) const {
    auto param = vector<placement::Replicated>(std::move(name), config.hidden_size, init_value);
    param.desc.partial_grad = parallel.tensor_parallel.size() > 1 && parallel.sequence_parallel;
    return param;
  }

  /// Works on heads, of which a rank has its own.
  Param<placement::Replicated> head_vector(std::string name) const {
    auto param = vector<placement::Replicated>(std::move(name), config.kv_channels, 1.0);
    param.desc.partial_grad = parallel.tensor_parallel.size() > 1;
    return param;
  }

  /// Rows of the embedding and the head, padded for the ranks.
  std::int64_t padded_vocab_size() const {
    const auto unit = parallel.make_vocab_size_divisible_by * parallel.tensor_parallel.size();
    return (config.vocab_size + unit - 1) / unit * unit;
  }

 private:
  template <class Placement>
  Param<Placement> describe(std::string name, std::vector<std::int64_t> shape, double init_std,
                            double init_value) const {
    Param<Placement> param;
    param.desc.name = std::move(name);
    param.desc.weight_decay = shape.size() > 1;
    param.desc.shape = std::move(shape);
    param.desc.placement = placement_kind<Placement>;
    param.desc.init_std = init_std;
    param.desc.init_value = init_value;
    param.desc.qkv = {config.num_query_groups, config.num_attention_heads / config.num_query_groups,
                      config.kv_channels};
    param.desc.tp = parallel.tensor_parallel.place();
    if (param.desc.placement == PlacementKind::vocab)
      param.desc.padding = padded_vocab_size() - config.vocab_size;
    return param;
  }
};

RankSizes rank_sizes(const TransformerConfig& config, const parallel::ModelParallel& parallel) {
  const auto& tp = parallel.tensor_parallel;
  const auto heads = config.num_attention_heads / tp.size();
  RankSizes sizes;
  sizes.qkv.groups = std::max<std::int64_t>(config.num_query_groups / tp.size(), 1);
  sizes.qkv.queries_per_group = heads / sizes.qkv.groups;
  sizes.qkv.head_dim = config.kv_channels;
  sizes.ffn = config.ffn_hidden_size / tp.size();
  sizes.vocab_rows = Describe{config, parallel}.padded_vocab_size() / tp.size();
  sizes.first_vocab_row = tp.rank() * sizes.vocab_rows;
  sizes.vocab_columns =
      std::clamp<std::int64_t>(config.vocab_size - sizes.first_vocab_row, 0, sizes.vocab_rows);
  return sizes;
}

/// UserError where the layers cannot be shared by so many ranks.
const parallel::ModelParallel& checked(const TransformerConfig& config,
                                       const parallel::ModelParallel& parallel) {
  check_user(parallel.make_vocab_size_divisible_by >= 1, "make_vocab_size_divisible_by is ",
             parallel.make_vocab_size_divisible_by, "; it must be at least 1.");
  parallel::Extents extents;
  extents.tp = parallel.tensor_parallel.size();
  parallel::check_model_fits(layout_sizes(config), extents);
  return parallel;
}

}  // namespace

std::string Decoder::enable_fused_kernels() { return training::_compile_dependencies(); }

Decoder::Decoder(const TransformerConfig& config, const parallel::ModelParallel& parallel)
    : config_(config),
      parallel_(checked(config, parallel)),
      sizes_(rank_sizes(config, parallel)),
      inverse_frequencies_(rotary_inverse_frequencies(config)) {
  const Describe describe{config_, parallel_};
  const auto vocab = describe.padded_vocab_size();
  const auto width = (config.num_attention_heads + 2 * config.num_query_groups) * config.kv_channels;
  const auto context = config.num_attention_heads * config.kv_channels;
  const auto std = config.init_method_std;
  const auto output_std =
      std / std::sqrt(2.0 * static_cast<double>(config.num_layers));  // Megatron's output layers
  word_embeddings =
      describe.matrix<placement::Vocab>("embedding.word_embeddings.weight", vocab, config.hidden_size, std);
  final_layernorm = describe.stream_vector("decoder.final_layernorm.weight", 1.0);
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const auto prefix = concat("decoder.layers.", i, ".");
    const auto attention = prefix + "self_attention.";
    const auto mlp = prefix + "mlp.";
    DecoderLayer layer;
    layer.input_layernorm_weight = describe.stream_vector(prefix + "input_layernorm.weight", 1.0);
    layer.self_attention.linear_qkv_weight =
        describe.matrix<placement::Qkv>(attention + "linear_qkv.weight", width, config.hidden_size, std);
    if (config.add_qkv_bias)
      layer.self_attention.linear_qkv_bias =
          describe.vector<placement::Qkv>(attention + "linear_qkv.bias", width, 0.0);
    if (config.qk_layernorm) {
      layer.self_attention.q_layernorm_weight = describe.head_vector(attention + "q_layernorm.weight");
      layer.self_attention.k_layernorm_weight = describe.head_vector(attention + "k_layernorm.weight");
    }
    layer.self_attention.linear_proj_weight = describe.matrix<placement::Row>(
        attention + "linear_proj.weight", config.hidden_size, context, output_std);
    if (config.add_proj_bias)
      layer.self_attention.linear_proj_bias = describe.stream_vector(attention + "linear_proj.bias", 0.0);
    layer.pre_mlp_layernorm_weight = describe.stream_vector(prefix + "pre_mlp_layernorm.weight", 1.0);
    layer.mlp.linear_fc1_weight = describe.matrix<placement::GateUp>(
        mlp + "linear_fc1.weight", 2 * config.ffn_hidden_size, config.hidden_size, std);
    if (config.add_mlp_bias)
      layer.mlp.linear_fc1_bias =
          describe.vector<placement::GateUp>(mlp + "linear_fc1.bias", 2 * config.ffn_hidden_size, 0.0);
    layer.mlp.linear_fc2_weight = describe.matrix<placement::Row>(
        mlp + "linear_fc2.weight", config.hidden_size, config.ffn_hidden_size, output_std);
    if (config.add_mlp_bias) layer.mlp.linear_fc2_bias = describe.stream_vector(mlp + "linear_fc2.bias", 0.0);
    layers.push_back(std::move(layer));
  }
  if (config.value_head) {
    value_head.emplace();
    value_head->weight =
        describe.matrix<placement::Replicated>("output_layer.weight", 1, config.hidden_size, std);
    if (config.add_value_head_bias)
      value_head->bias = describe.vector<placement::Replicated>("output_layer.bias", 1, 0.0);
  } else if (!config.share_embeddings_and_output_weights) {
    output_layer = describe.matrix<placement::Vocab>("output_layer.weight", vocab, config.hidden_size, std);
  }
}

void Decoder::forward(const Batch& batch, Workspace& workspace, bool keep) const {
  with_region(parallel_, batch.num_tokens(),
              [&](const auto& region) { run_layers(region, batch, workspace, keep); });
}

void Decoder::forward_whole_stream(const Batch& batch, Workspace& workspace) const {
  auto parallel = parallel_;
  parallel.sequence_parallel = false;
  with_region(parallel, batch.num_tokens(),
              [&](const auto& region) { run_layers(region, batch, workspace, true); });
}

template <class Region>
void Decoder::run_layers(const Region& region, const Batch& batch, Workspace& workspace, bool keep) const {
  auto& arena = workspace.arena;
  arena.release({});
  workspace.activations = {};
  auto& run = workspace.activations;
  run.batch = batch;
  const auto tokens = batch.num_tokens(), rows = region.rows(tokens);
  const auto dtype = word_embeddings.value.scalar_type();
  const auto main = main_dtype(dtype);
  const auto hidden = config_.hidden_size;
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());

  run.cos = arena.take({tokens, half}, main);
  run.sin = arena.take({tokens, half}, main);
  rotary_tables(batch, inverse_frequencies_, config_.rope_scaling.attention_factor, run.cos, run.sin);

  run.final_input = arena.take({rows, hidden}, dtype);
  run.final_rstd = arena.take({rows}, main);
  run.hidden = arena.take({rows, hidden}, dtype);
  auto embedded = arena.take({rows, hidden}, dtype);
  auto mlp_out = arena.take({rows, hidden}, dtype);
  const auto start = arena.mark();
  Scratch scratch;
  scratch.normed = arena.take({rows, hidden}, dtype);
  scratch.delta = arena.take({rows, hidden}, dtype);
  scratch.activated = arena.take({tokens, sizes_.ffn}, dtype);
  scratch.gathered = take_wide(arena, region, tokens, hidden, dtype);
  scratch.partial = take_wide(arena, region, tokens, hidden, dtype);

  embed(region, batch.input_ids, word_embeddings.value, sizes_, scratch, embedded);
  // The stream that enters a layer is `stream` + `delta`; the first layer's delta is nothing, so its input is
  // a copy.
  Tensor stream = embedded, delta;
  LayerActivations saved;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    // Without keep two sets take turns: a layer reads its predecessor's `middle` while it writes its own.
    if (keep || i < 2) run.layers.push_back(take_layer(arena, config_, sizes_, rows, tokens, dtype));
    saved = run.layers[keep ? i : i % 2];
    if (!delta.defined()) saved.input = embedded;
    const LayerPass<Region> pass{region, config_, sizes_, i, batch, run.cos, run.sin};
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

const Tensor& Decoder::head_input(Workspace& workspace) const {
  auto& run = workspace.activations;
  if (!run.head_input.defined())
    with_region(parallel_, run.batch.num_tokens(), [&]<class Region>(const Region& region) {
      auto wide = take_wide(workspace.arena, region, run.batch.num_tokens(), config_.hidden_size,
                            run.hidden.scalar_type());
      run.head_input = region.enter(Act<typename Region::stream>{run.hidden}, wide).tensor;
    });
  return run.head_input;
}

template <class Write>
void Decoder::write_d_hidden(Workspace& workspace, Write&& write) const {
  auto& run = workspace.activations;
  const auto tokens = run.batch.num_tokens();
  run.d_hidden = workspace.arena.take(run.hidden.sizes(), run.hidden.scalar_type());
  with_region(parallel_, tokens, [&](const auto& region) {
    auto wide = take_wide(workspace.arena, region, tokens, config_.hidden_size, run.hidden.scalar_type());
    auto sum = region.partial(wide, run.d_hidden);
    sum.write(tokens, write);
    region.leave(std::move(sum), run.d_hidden);
  });
}

void Decoder::keep_own_rows(Workspace& workspace, const Tensor& d_input) const {
  auto& run = workspace.activations;
  run.d_hidden = workspace.arena.take(run.hidden.sizes(), run.hidden.scalar_type());
  const auto rows = run.hidden.size(0), tokens = run.batch.num_tokens();
  with_region(parallel_, tokens, [&](const auto& region) {
    const auto first = std::min(region.first_row(tokens), tokens);
    const auto held = std::min(rows, tokens - first);
    run.d_hidden.narrow(0, 0, held).copy_(d_input.narrow(0, first, held));
    run.d_hidden.narrow(0, held, rows - held).zero_();
  });
}

VocabShard Decoder::head_shard() const {
  const auto& tp = parallel_.tensor_parallel;
  const auto& weight = head();
  return {weight.value.narrow(0, 0, sizes_.vocab_columns),
          weight.main_grad.defined() ? weight.main_grad.narrow(0, 0, sizes_.vocab_columns) : Tensor(),
          sizes_.first_vocab_row, config_.vocab_size, tp.size() > 1 ? &tp : nullptr};
}

LanguageModelOutput Decoder::head_forward(Workspace& workspace, const HeadRequest& request) const {
  auto& run = workspace.activations;
  return linear_cross_entropy(head_input(workspace), head_shard(), run.batch, request, workspace.arena,
                              run.head);
}

void Decoder::head_backward(Workspace& workspace, const LanguageModelOutput& d_output) {
  auto& run = workspace.activations;
  write_d_hidden(workspace, [&](Tensor& d_input) {
    linear_cross_entropy_backward(head_input(workspace), head_shard(), run.batch, run.head, d_output,
                                  workspace.arena, d_input);
  });
}

LanguageModelOutput Decoder::head_forward_backward(Workspace& workspace, const Tensor& d_log_prob,
                                                   const HeadRequest& request) {
  auto& run = workspace.activations;
  const auto& input = head_input(workspace);
  LanguageModelOutput output;
  write_d_hidden(workspace, [&](Tensor& d_input) {
    output = linear_cross_entropy_forward_backward(input, head_shard(), run.batch, d_log_prob, request,
                                                   workspace.arena, d_input);
  });
  return output;
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
  if (request.mean_log_probs) output.mean_log_probs = log_p.mean(-1);
  return output;
}

void Decoder::head_logits_backward(Workspace& workspace, const Tensor& d_logits) {
  const auto& run = workspace.activations;
  const auto scale = logit_scale(run.batch, d_logits.scalar_type());
  const auto shard = head_shard();
  const auto first = std::min(sizes_.first_vocab_row, config_.vocab_size);
  const auto d_rows =
      d_logits.narrow(1, first, sizes_.vocab_columns).mul(scale.unsqueeze(1)).to(run.hidden.scalar_type());
  const auto& input = head_input(workspace);
  write_d_hidden(workspace, [&](Tensor& d_input) {
    if (sizes_.vocab_columns == 0) {
      d_input.zero_();
      return;
    }
    auto weight_grad = shard.weight_grad;
    kernels::linear_input_grad(d_rows, shard.weight, d_input);
    kernels::linear_weight_grad(d_rows, input, weight_grad);
  });
}

void Decoder::backward(Workspace& workspace) {
  with_region(parallel_, workspace.activations.batch.num_tokens(),
              [&](const auto& region) { run_backward(region, workspace); });
}

template <class Region>
void Decoder::run_backward(const Region& region, Workspace& workspace) {
  auto& arena = workspace.arena;
  auto& run = workspace.activations;
  const auto tokens = run.batch.num_tokens(), rows = region.rows(tokens);
  const auto hidden = config_.hidden_size;
  const auto dtype = run.hidden.scalar_type();
  const auto main = main_dtype(dtype);
  const auto& layout = sizes_.qkv;
  Scratch scratch;
  scratch.normed = arena.take({rows, hidden}, dtype);
  scratch.rstd = arena.take({rows}, main);
  scratch.activated = arena.take({tokens, sizes_.ffn}, dtype);
  scratch.d_activated = arena.take({tokens, sizes_.ffn}, dtype);
  scratch.d_context = arena.take({tokens, layout.heads() * layout.head_dim}, dtype);
  scratch.d_qkv = arena.take({tokens, layout.row_width()}, dtype);
  scratch.d_normed = arena.take({rows, hidden}, dtype);
  scratch.gathered = take_wide(arena, region, tokens, hidden, dtype);
  scratch.partial = take_wide(arena, region, tokens, hidden, dtype);

  auto& d_stream = run.d_hidden;
  kernels::rms_norm_backward(d_stream, run.final_input, final_layernorm.value, run.final_rstd, Tensor(),
                             d_stream, final_layernorm.main_grad);
  for (std::size_t i = layers.size(); i-- > 0;) {
    const LayerPass<Region> pass{region, config_, sizes_, i, run.batch, run.cos, run.sin};
    pass.backward(layers[i], run.layers[i], scratch, d_stream);
  }
  const auto d_embedded = region.enter(Act<typename Region::stream>{d_stream}, scratch.gathered).tensor;
  kernels::embedding_backward(run.batch.input_ids, d_embedded, sizes_.first_vocab_row, embedding_grad());
}

void Decoder::initialize(std::uint64_t seed, std::span<const std::string> names) {
  const std::set<std::string_view> wanted(names.begin(), names.end());
  std::vector<ParamRef> chosen;
  for (const auto& param : parameters())
    if (wanted.count(param.desc->name) != 0) chosen.push_back(param);
  initialize_parameters(chosen, seed);
}

void Decoder::finalize_grads() {
  if (is_tied()) word_embeddings.main_grad.add_(tied_embedding_grad_);
  distributed::_allreduce_non_tensor_model_parallel_grads(parameters(), parallel_.tensor_parallel);
}

void Decoder::allocate_grads(at::ScalarType main_dtype) {
  if (is_tied()) tied_embedding_grad_ = zeros(word_embeddings.value.sizes(), main_dtype);
}

void Decoder::move_grads(c10::DeviceType device) {
  if (tied_embedding_grad_.defined()) tied_embedding_grad_ = tied_embedding_grad_.to(c10::Device(device));
}

void Decoder::zero_grads() {
  if (tied_embedding_grad_.defined()) tied_embedding_grad_.zero_();
}

}  // namespace mgfl::model
