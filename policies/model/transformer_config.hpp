/// What a decoder-only transformer is made of, in Megatron's names: the result of reading a Hugging Face
/// config.json.
// Mirrors megatron.core.transformer.transformer_config.TransformerConfig.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mgfl/parallel/model_fit.hpp"

namespace mgfl::model {

/// What a decoder's last hidden states become: logits over the vocabulary, or one value a position (a
/// critic).
enum class Head { language_model, value };

/// How rotary frequencies are scaled for long contexts.
enum class RopeType { standard, llama3, yarn, linear };

struct RopeScaling {
  RopeType type = RopeType::standard;
  double factor = 1.0;
  // llama3
  double low_freq_factor = 0, high_freq_factor = 0;
  // llama3 and yarn
  double original_max_position_embeddings = 0;
  // yarn
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 1.0;  // multiplies cos and sin; filled in by the reader of config.json
  bool truncate = true;

  bool operator==(const RopeScaling&) const = default;
};

/// Fields carry the names of Megatron's TransformerConfig where it has them.
struct TransformerConfig {
  std::string architecture;  // as config.json has it, e.g. "LlamaForCausalLM", also for a critic made of that
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // kv heads
  std::int64_t kv_channels = 0;       // head_dim
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double layernorm_epsilon = 1e-5;
  double init_method_std = 0.02;
  double rotary_base = 10000.0;
  RopeScaling rope_scaling;
  bool share_embeddings_and_output_weights = false;  // tied head
  bool qk_layernorm = false;
  bool add_qkv_bias = false;
  bool add_proj_bias = false;  // o_proj
  bool add_mlp_bias = false;
  bool value_head = false;  // a critic: one value a position in place of logits; never tied
  bool add_value_head_bias = false;
  std::vector<std::int64_t> window_size;  // per layer: keys a query sees, its own included; 0 = all before it
  std::vector<std::int64_t> eos_token_ids;
  std::int64_t pad_token_id = -1;  // -1: none

  bool operator==(const TransformerConfig&) const = default;
};

/// Checks that the fields fit each other: positive sizes, head_dim even, query heads a multiple of kv heads,
/// one window a layer, rotary numbers sound, no tied value head. UserError naming the field and its value.
void validate(const TransformerConfig& config);

/// What of a model a layout divides; engines look at it before they allocate anything.
parallel::ModelSizes layout_sizes(const TransformerConfig& config);

/// Inverse frequencies of the rotary embedding in double precision, [kv_channels / 2], scaling applied.
std::vector<double> rotary_inverse_frequencies(const TransformerConfig& config);

}  // namespace mgfl::model
