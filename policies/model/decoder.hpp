/// The decoder-only transformer: structs of parameters, blocks as explicit forward/backward pairs.
// Mirrors megatron.core.models.gpt.GPTModel.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mgfl/engine/outputs.hpp"
#include "mgfl/parallel/param.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"
#include "policies/distributed/finalize_model_grads.hpp"
#include "policies/kernels/types.hpp"
#include "policies/model/arena.hpp"
#include "policies/model/linear_cross_entropy.hpp"
#include "policies/model/transformer_config.hpp"

namespace mgfl::bridge {
class AutoBridge;
}
namespace mgfl::checkpoint {
struct TrainingCheckpoint;
}

namespace mgfl::model {

/// linear_qkv's rows lie per kv group: [its queries, its key, its value].
struct SelfAttention {
  Param<placement::Qkv> linear_qkv_weight;
  std::optional<Param<placement::Qkv>> linear_qkv_bias;
  std::optional<Param<placement::Replicated>> q_layernorm_weight, k_layernorm_weight;
  Param<placement::Row> linear_proj_weight;
  std::optional<Param<placement::Replicated>> linear_proj_bias;
};

/// linear_fc1's rows are [gate; up].
struct Mlp {
  Param<placement::GateUp> linear_fc1_weight;
  std::optional<Param<placement::GateUp>> linear_fc1_bias;
  Param<placement::Row> linear_fc2_weight;
  std::optional<Param<placement::Replicated>> linear_fc2_bias;
};

struct DecoderLayer {
  Param<placement::Replicated> input_layernorm_weight;
  SelfAttention self_attention;
  Param<placement::Replicated> pre_mlp_layernorm_weight;
  Mlp mlp;
};

/// One value a position, in place of logits. Mirrors verl's LinearForLastLayer.
struct ValueHead {
  Param<placement::Replicated> weight;               // [1, hidden]
  std::optional<Param<placement::Replicated>> bias;  // [1]
};

/// What of the layers and the vocabulary a tensor-parallel rank computes.
struct RankSizes {
  kernels::QkvLayout qkv;
  std::int64_t ffn = 0;
  std::int64_t first_vocab_row = 0, vocab_rows = 0;
  std::int64_t vocab_columns = 0;  // of these rows, those that are no padding
};

/// What the forward pass of one layer keeps for its backward pass. Norm outputs and the activated MLP are
/// computed anew. Widths are this rank's; `rows` are tokens, under sequence parallelism this rank's.
struct LayerActivations {
  Tensor input;            // [rows, hidden] residual stream at the layer's start
  Tensor input_rstd;       // [rows]
  Tensor qkv_before_norm;  // [tokens, qkv width], only where heads are normed
  Tensor qk_rstd;          // [tokens, heads + groups], only where heads are normed
  Tensor qkv;              // [tokens, qkv width] after rotation
  Tensor context;          // [tokens, heads * head_dim] attention output
  Tensor lse;              // [heads, tokens]
  Tensor middle;           // [rows, hidden] residual stream before the MLP
  Tensor middle_rstd;      // [rows]
  Tensor gate_up;          // [tokens, 2 ffn]
};

/// One micro-batch on its way through the model. Tensors live in the workspace's arena.
struct Activations {
  Batch batch;
  Tensor cos, sin;  // [tokens, head_dim / 2]
  std::vector<LayerActivations> layers;
  Tensor final_input;   // [rows, hidden]
  Tensor final_rstd;    // [rows]
  Tensor hidden;        // [rows, hidden], the final norm's output
  Tensor head_input;    // [tokens, hidden], made of it when a head first asks
  HeadStatistics head;  // kept for the head's backward pass
  Tensor d_hidden;      // [rows, hidden], gradient of `hidden`
};

/// Keys and values of every position so far, for generation. Layer tensors are [sequences, groups, capacity,
/// head_dim].
struct KvCache {
  std::vector<Tensor> keys, values;   // one of each a layer
  std::vector<std::int64_t> lengths;  // positions filled, one a sequence

  std::int64_t capacity() const { return keys.empty() ? 0 : keys.front().size(2); }
  /// Makes room for more positions; what is filled stays.
  void grow(std::int64_t capacity);
};

/// Reused memory and the activations of the micro-batch in flight.
struct Workspace {
  Arena arena;
  Activations activations;
};

/// The transformer with a language-model head. Model contract of Engine: parameters, and a micro-batch's
/// passes in pieces.
class Decoder {
 public:
  using config_type = TransformerConfig;
  using bridge_type = bridge::AutoBridge;
  using checkpoint_type = checkpoint::TrainingCheckpoint;
  using workspace_type = Workspace;
  using output_type = LanguageModelOutput;
  using loss_input_type = LossInput;
  static constexpr Head head_kind = Head::language_model;

  /// Makes this build's kernels ready for this machine; what its user should know about that, or nothing.
  static std::string enable_fused_kernels();

  /// One rank's share of the model. UserError where its sizes cannot be shared by so many ranks.
  explicit Decoder(const TransformerConfig& config, const parallel::ModelParallel& parallel = {});

  const TransformerConfig& config() const { return config_; }

  /// Every parameter once, in the order of their Megatron names' layers. The references stay valid as long as
  /// the model.
  std::vector<ParamRef> parameters();

  /// Runs embedding, layers and final norm; keeps what backward needs in `workspace` (nothing with keep =
  /// false).
  void forward(const Batch& batch, Workspace& workspace, bool keep) const;

  // Heads and generation are collective over the tensor-parallel group, and give every rank of it the same.

  /// log p(label), and what else is asked for, of every position, in row chunks, without storing logits.
  LanguageModelOutput head_forward(Workspace& workspace, const HeadRequest& request) const;

  /// Gradient of sum(d_output * output) over the defined parts, with respect to the head's weight
  /// (accumulated) and input.
  void head_backward(Workspace& workspace, const LanguageModelOutput& d_output);

  /// head_forward and head_backward in one pass over the logits, for losses whose gradient is known
  /// beforehand.
  LanguageModelOutput head_forward_backward(Workspace& workspace, const Tensor& d_log_prob,
                                            const HeadRequest& request);

  /// Whole logits over the temperature, [tokens, vocab] in fp32 (fp64), for closures that want them.
  Tensor head_logits(Workspace& workspace) const;

  /// What head_forward gives, from such logits; differentiable.
  static LanguageModelOutput output_of_logits(const Tensor& logits, const Batch& batch,
                                              const HeadRequest& request);

  /// Backward of head_logits: the head's weight (accumulated) and input.
  void head_logits_backward(Workspace& workspace, const Tensor& d_logits);

  /// Backward of `forward` from the head's input gradient; accumulates every main_grad.
  void backward(Workspace& workspace);

  /// Whole logits [tokens, vocab] of the micro-batch in flight, for people and tests.
  Tensor logits(Workspace& workspace) const;

  /// An empty cache for as many sequences, each of at most `capacity` positions.
  KvCache make_cache(std::int64_t sequences, std::int64_t capacity) const;

  /// Runs whole prompts through the model and keeps their keys and values: sequence s of the batch becomes
  /// sequence s of the cache. Logits of each sequence's last position, [sequences, vocab].
  Tensor prefill(const Batch& prompts, KvCache& cache, Workspace& workspace) const;

  /// One more token for each listed sequence of the cache. ids int64 [n]; logits [n, vocab].
  Tensor decode(const Tensor& ids, const std::vector<std::int64_t>& sequences, KvCache& cache,
                Workspace& workspace) const;

  /// Random weights for the parameters of these names, as their descriptions say.
  void initialize(std::uint64_t seed, std::span<const std::string> names);

  /// Makes gradients whole after the last micro-batch, but for the sum over data-parallel ranks: adds the
  /// embedding's share of a tied weight, and sums over the tensor-parallel group what each of its ranks has a
  /// part of. Collective over that group.
  void finalize_grads();

  /// Sums a tied weight's main_grad over the pipeline stages that hold it, see
  /// distributed::_allreduce_embedding_grad. Collective over the groups.
  template <parallel::Communicator C>
  void allreduce_embedding_grad(const parallel::GroupList<C>& embd_group) {
    if (is_tied()) distributed::_allreduce_embedding_grad(word_embeddings.main_grad, embd_group);
  }

  /// Allocates what gradients need beside main_grad (a tied weight keeps one buffer per use until the end of
  /// the step).
  void allocate_grads(at::ScalarType main_dtype);
  void zero_grads();
  void move_grads(c10::DeviceType device);

  Param<placement::Vocab> word_embeddings;
  std::vector<DecoderLayer> layers;
  Param<placement::Replicated> final_layernorm;
  std::optional<Param<placement::Vocab>> output_layer;  // absent when tied, and in a critic
  std::optional<ValueHead> value_head;                  // of a critic only

 protected:
  bool is_tied() const { return !output_layer && !value_head; }

  /// The head's input, whole on every tensor-parallel rank.
  const Tensor& head_input(Workspace& workspace) const;
  /// Sets d_hidden from a gradient of head_input that every rank has whole.
  void keep_own_rows(Workspace& workspace, const Tensor& d_input) const;

 private:
  template <class Region>
  void run_layers(const Region& region, const Batch& batch, Workspace& workspace, bool keep) const;
  template <class Region>
  void run_backward(const Region& region, Workspace& workspace);
  /// `forward` with the stream whole on every rank, also under sequence parallelism.
  void forward_whole_stream(const Batch& batch, Workspace& workspace) const;
  /// Sets d_hidden from this rank's summand of the gradient of head_input, which `write` writes.
  template <class Write>
  void write_d_hidden(Workspace& workspace, Write&& write) const;
  VocabShard head_shard() const;
  Tensor logits_of(const Tensor& hidden) const;

  const Param<placement::Vocab>& head() const { return output_layer ? *output_layer : word_embeddings; }
  Param<placement::Vocab>& head() { return output_layer ? *output_layer : word_embeddings; }
  Tensor& embedding_grad() { return is_tied() ? tied_embedding_grad_ : word_embeddings.main_grad; }

  TransformerConfig config_;
  parallel::ModelParallel parallel_;
  RankSizes sizes_;
  std::vector<double> inverse_frequencies_;
  Tensor tied_embedding_grad_;  // as word_embeddings, when tied
};

}  // namespace mgfl::model
