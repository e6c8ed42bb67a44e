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
  std::string text;                     // of the file, kept for export
  std::optional<at::ScalarType> dtype;  // "dtype" or "torch_dtype"; none when neither is there
  std::filesystem::path file;           // where it came from, for messages
};

/// Architectures that the bridge reads and writes.
std::vector<std::string_view> supported_architectures();

/// Reads `path`, a config.json or the folder that holds one. UserError naming file and key for everything
/// that is missing, of the wrong type, contradictory, or not supported: nothing the model's mathematics
/// depends on is ignored.
HfConfig read_hf_config(const std::filesystem::path& path);

/// The same from a text; `source` is what errors call it.
HfConfig parse_hf_config(std::string text, const std::filesystem::path& source);

/// The text to write beside exported weights: the source's own, unless head_dim is missing there or the dtype
/// differs from `dtype`; then with those put right and all else kept, in order.
std::string export_hf_config(const HfConfig& config, at::ScalarType dtype);

}  // namespace mgfl::bridge
