/// Reads a Hugging Face config.json, in the spelling of transformers 4 or 5, into a TransformerConfig.
// Mirrors megatron.bridge's provider_bridge and transformers' own configuration classes, whose defaults hold.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "policies/model/transformer_config.hpp"

namespace mgfl::bridge {

/// A config.json as read.
struct HfConfig {
  model::TransformerConfig config;
  std::string text;                       // of the file, kept for export
  std::optional<at::ScalarType> dtype;    // "dtype" or "torch_dtype"; none when neither is there
  std::filesystem::path file;             // where it came from, for messages
  bool value_head_can_have_bias = false;  // in transformers' class: then the weights say whether there is one
};

/// Architectures that the bridge reads and writes.
std::vector<std::string> supported_architectures();

/// Reads `path`, a config.json or the folder that holds one. UserError naming file and key for everything
/// that is missing, of the wrong type, contradictory, or not supported: nothing the model's mathematics
/// depends on is ignored. (The dropout that transformers puts before a value head while training is none of
/// ours.) `head`: `value` reads a value model (...ForTokenClassification, ...ForSequenceClassification), or
/// makes a critic of a language model, with an untied head without bias; `language_model` refuses a value
/// model.
HfConfig read_hf_config(const std::filesystem::path& path, model::Head head = model::Head::language_model);

/// The same from a text; `source` is what errors call it.
HfConfig parse_hf_config(std::string text, const std::filesystem::path& source,
                         model::Head head = model::Head::language_model);

/// Whether config.json is a language model's, of which this config makes a critic: its weights may have no
/// value head, and an lm_head that the critic does not use.
bool is_critic_of_language_model(const model::TransformerConfig& config);

/// The text to write beside exported weights: the source's own, unless head_dim is missing there, the dtype
/// differs from `dtype`, or it is a language model's and this is a critic, which becomes a
/// ...ForTokenClassification with one label; then with those put right and all else kept, in order.
std::string export_hf_config(const HfConfig& config, at::ScalarType dtype);

}  // namespace mgfl::bridge
