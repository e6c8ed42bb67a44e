/// The decoder-only transformer: structs of parameters, blocks as explicit forward/backward pairs.
// Mirrors megatron.core.models.gpt.GPTModel.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mgfl/engine/outputs.hpp"
#include "mgfl/parallel/param.hpp"
#include "policies/distributed/finalize_model_grads.hpp"
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

/// What the forward pass of one layer keeps for its backward pass. Norm outputs and the activated MLP are
/// computed anew.
struct LayerActivations {
  Tensor input;            // [tokens, hidden] residual stream at the layer's start
  Tensor input_rstd;       // [tokens]
  Tensor qkv_before_norm;  // [tokens, qkv width], only where heads are normed
  Tensor qk_rstd;          // [tokens, heads + groups], only where heads are normed
  Tensor qkv;              // [tokens, qkv width] after rotation
  Tensor context;          // [tokens, heads * head_dim] attention output
  Tensor lse;              // [heads, tokens]
  Tensor middle;           // [tokens, hidden] residual stream before the MLP
  Tensor middle_rstd;      // [tokens]
  Tensor gate_up;          // [tokens, 2 ffn]
};

/// One micro-batch on its way through the model. Tensors live in the workspace's arena.
struct Activations {
  Batch batch;
  Tensor cos, sin;  // [tokens, head_dim / 2]
  std::vector<LayerActivations> layers;
  Tensor final_input;   // [tokens, hidden]
  Tensor final_rstd;    // [tokens]
  Tensor hidden;        // [tokens, hidden], the head's input
  HeadStatistics head;  // kept for the head's backward pass
  Tensor d_hidden;      // [tokens, hidden], the head's gradient
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

  explicit Decoder(const TransformerConfig& config);

  const TransformerConfig& config() const { return config_; }

  /// Every parameter once, in the order of their Megatron names' layers. The references stay valid as long as
  /// the model.
  std::vector<ParamRef> parameters();

  /// Runs embedding, layers and final norm; keeps what backward needs in `workspace` (nothing with keep =
  /// false).
  void forward(const Batch& batch, Workspace& workspace, bool keep) const;

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

  /// Adds the embedding's share of a tied weight to its main_grad; called once, after the last micro-batch.
  void finalize_tied_grads();

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

 private:
  const Param<placement::Vocab>& head() const { return output_layer ? *output_layer : word_embeddings; }
  Param<placement::Vocab>& head() { return output_layer ? *output_layer : word_embeddings; }
  Tensor& embedding_grad() { return is_tied() ? tied_embedding_grad_ : word_embeddings.main_grad; }

  TransformerConfig config_;
  std::vector<double> inverse_frequencies_;
  Tensor tied_embedding_grad_;  // [vocab, hidden] when tied
};

}  // namespace mgfl::model
