/// One decoder layer as a pair of forward and backward passes, compiled once for each way in which ranks may
/// share it. For decoder.cpp and kv_cache.cpp.
// Mirrors megatron.core.transformer.TransformerLayer with ColumnParallelLinear and RowParallelLinear.
#pragma once

#include <cmath>

#include "mgfl/parallel/activation.hpp"
#include "policies/kernels/kernels.hpp"
#include "policies/kernels/main_dtype.hpp"
#include "policies/model/decoder.hpp"
#include "policies/tensor_parallel/layers.hpp"

namespace mgfl::model {

template <class OptionalParam>
Tensor value_or_none(const OptionalParam& param) {
  return param ? param->value : Tensor();
}

/// cos and sin of every token's angles, [tokens, head_dim / 2], computed in double.
void rotary_tables(const Batch& batch, const std::vector<double>& inverse_frequencies, double factor,
                   Tensor& cos, Tensor& sin);

/// Tensors that every layer of one pass uses again: nothing in them outlives its layer.
struct Scratch {
  Tensor normed, rstd, delta, activated;           // forward
  Tensor d_activated, d_context, d_qkv, d_normed;  // backward
  // Under sequence parallelism [padded tokens, hidden]: what was gathered, and what will be reduced. The
  // padding of `partial` is zero.
  Tensor gathered, partial;
};

/// A [padded tokens, width] tensor for a region that needs one, its padding zero.
template <class Region>
Tensor take_wide(Arena& arena, const Region& region, std::int64_t tokens, std::int64_t width,
                 at::ScalarType dtype) {
  if constexpr (std::is_same_v<Region, parallel::SequenceParallelRegion>) {
    const auto padded = region.rows(tokens) * region.group.size();
    auto wide = arena.take({padded, width}, dtype);
    wide.narrow(0, tokens, padded - tokens).zero_();
    return wide;
  } else {
    return {};
  }
}

/// The vocabulary-parallel embedding: every rank looks up the tokens that it holds. `own` [rows, hidden] of
/// the stream.
template <class Region>
void embed(const Region& region, const Tensor& ids, const Tensor& weight, const RankSizes& sizes,
           Scratch& scratch, Tensor& own) {
  auto sum = region.partial(scratch.partial, own);
  sum.write(ids.numel(), [&](Tensor& rows) { kernels::embedding(ids, weight, sizes.first_vocab_row, rows); });
  region.leave(std::move(sum), own);
}

/// Layer blocks as pairs. `residual` + `delta` is the stream that enters; on return `residual` is the stream
/// before the MLP and `delta` the MLP's output.
template <class Region>
struct LayerPass {
  using Stream = typename Region::stream;

  const Region& region;
  const TransformerConfig& config;
  const RankSizes& sizes;
  std::size_t index;
  const Batch& batch;
  const Tensor& cos;
  const Tensor& sin;

  kernels::AttentionShape attention_shape() const {
    return {sizes.qkv, 1.0 / std::sqrt(static_cast<double>(config.kv_channels)),
            index < config.window_size.size() ? config.window_size[index] : 0};
  }

  /// x w^T of scratch.normed with w split over output rows: every rank computes its own columns.
  template <class P>
  void column_parallel(const Param<P>& weight, const std::optional<Param<P>>& bias, Scratch& scratch,
                       Tensor& y) const {
    const auto x = region.enter(Act<Stream>{scratch.normed}, scratch.gathered);
    tensor_parallel::column_parallel_linear({weight.value, value_or_none(bias)}, x, y);
  }

  /// x w^T with w split over input columns: a summand, made whole by the group; the bias is added once.
  Act<Stream> row_parallel(const Tensor& x, const Tensor& w, const Tensor& bias, Scratch& scratch,
                           Tensor& own) const {
    auto sum = region.partial(scratch.partial, own);
    sum.write(x.size(0),
              [&](Tensor& rows) { kernels::linear(x, w, Region::is_parallel ? Tensor() : bias, rows); });
    auto y = region.leave(std::move(sum), own);
    if (Region::is_parallel && bias.defined()) y.tensor.add_(bias);
    return y;
  }

  void forward(const DecoderLayer& layer, const Tensor& stream, const Tensor& delta, LayerActivations& saved,
               Scratch& scratch, Tensor& mlp_out) const {
    forward(layer, stream, delta, saved, scratch, mlp_out, [&] {
      kernels::attention(saved.qkv, batch.cu_seqlens, attention_shape(), saved.context, saved.lse);
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
    column_parallel(attention.linear_qkv_weight, attention.linear_qkv_bias, scratch, projected);
    kernels::qk_norm_rotary(projected, value_or_none(attention.q_layernorm_weight),
                            value_or_none(attention.k_layernorm_weight), config.layernorm_epsilon, cos, sin,
                            sizes.qkv, saved.qkv, saved.qk_rstd);
    attend();
    const auto attended = row_parallel(saved.context, attention.linear_proj_weight.value,
                                       value_or_none(attention.linear_proj_bias), scratch, scratch.delta);
    kernels::rms_norm(saved.input, attended.tensor, layer.pre_mlp_layernorm_weight.value,
                      config.layernorm_epsilon, saved.middle, scratch.normed, saved.middle_rstd);
    column_parallel(layer.mlp.linear_fc1_weight, layer.mlp.linear_fc1_bias, scratch, saved.gate_up);
    kernels::swiglu(saved.gate_up, scratch.activated);
    row_parallel(scratch.activated, layer.mlp.linear_fc2_weight.value,
                 value_or_none(layer.mlp.linear_fc2_bias), scratch, mlp_out);
  }

  /// d_stream: gradient of the layer's output stream on entry, of its input stream on exit.
  void backward(DecoderLayer& layer, LayerActivations& saved, Scratch& scratch, Tensor& d_stream) const {
    auto& mlp = layer.mlp;
    {
      const auto dy = region.enter(Act<Stream>{d_stream}, scratch.gathered).tensor;
      kernels::linear_input_grad(dy, mlp.linear_fc2_weight.value, scratch.d_activated);
      kernels::swiglu_backward(scratch.d_activated, saved.gate_up, saved.gate_up, scratch.activated);
      kernels::linear_weight_grad(dy, scratch.activated, mlp.linear_fc2_weight.main_grad);
      if (mlp.linear_fc2_bias) kernels::bias_grad(d_stream, mlp.linear_fc2_bias->main_grad);
    }
    column_parallel_backward(saved.gate_up, saved.middle, layer.pre_mlp_layernorm_weight.value,
                             mlp.linear_fc1_weight, mlp.linear_fc1_bias, scratch);
    kernels::rms_norm_backward(scratch.d_normed, saved.middle, layer.pre_mlp_layernorm_weight.value,
                               saved.middle_rstd, d_stream, d_stream,
                               layer.pre_mlp_layernorm_weight.main_grad);

    auto& attention = layer.self_attention;
    {
      const auto dy = region.enter(Act<Stream>{d_stream}, scratch.gathered).tensor;
      kernels::linear_weight_grad(dy, saved.context, attention.linear_proj_weight.main_grad);
      if (attention.linear_proj_bias) kernels::bias_grad(d_stream, attention.linear_proj_bias->main_grad);
      kernels::linear_input_grad(dy, attention.linear_proj_weight.value, scratch.d_context);
    }
    kernels::attention_backward(scratch.d_context, saved.qkv, saved.context, saved.lse, batch.cu_seqlens,
                                attention_shape(), scratch.d_qkv);
    Tensor none;
    kernels::qk_norm_rotary_backward(
        scratch.d_qkv, saved.qkv_before_norm, value_or_none(attention.q_layernorm_weight),
        value_or_none(attention.k_layernorm_weight), cos, sin, saved.qk_rstd, sizes.qkv,
        attention.q_layernorm_weight ? attention.q_layernorm_weight->main_grad : none,
        attention.k_layernorm_weight ? attention.k_layernorm_weight->main_grad : none);
    column_parallel_backward(scratch.d_qkv, saved.input, layer.input_layernorm_weight.value,
                             attention.linear_qkv_weight, attention.linear_qkv_bias, scratch);
    kernels::rms_norm_backward(scratch.d_normed, saved.input, layer.input_layernorm_weight.value,
                               saved.input_rstd, d_stream, d_stream, layer.input_layernorm_weight.main_grad);
  }

 private:
  /// Of a column-parallel linear whose input was norm(x): weight and bias gradients, and in scratch.d_normed
  /// the input's, made whole by the group. The norm is computed anew.
  template <class P>
  void column_parallel_backward(const Tensor& dy, const Tensor& x, const Tensor& norm_weight,
                                Param<P>& weight, std::optional<Param<P>>& bias, Scratch& scratch) const {
    auto sum = region.partial(scratch.partial, scratch.d_normed);
    sum.write(dy.size(0), [&](Tensor& rows) { kernels::linear_input_grad(dy, weight.value, rows); });
    region.leave_during(std::move(sum), scratch.d_normed, [&] {
      Tensor none;
      kernels::rms_norm(x, Tensor(), norm_weight, config.layernorm_epsilon, none, scratch.normed,
                        scratch.rstd);
      const auto input = region.enter(Act<Stream>{scratch.normed}, scratch.gathered).tensor;
      kernels::linear_weight_grad(dy, input, weight.main_grad);
      if (bias) kernels::bias_grad(dy, bias->main_grad);
    });
  }
};

/// Memory for one layer's activations: `rows` of the stream, `tokens` of what lies between linear layers.
LayerActivations take_layer(Arena& arena, const TransformerConfig& config, const RankSizes& sizes,
                            std::int64_t rows, std::int64_t tokens, at::ScalarType dtype);

}  // namespace mgfl::model
