/// Carries weights between Hugging Face folders and a model's parameters, both ways.
// Mirrors megatron.bridge.AutoBridge.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/parallel/param.hpp"
#include "policies/bridge/hf_config.hpp"
#include "policies/bridge/hf_weights.hpp"

namespace mgfl::bridge {

/// Copies the file's weights into the parameters' values, converting dtypes; one tensor of the file is in
/// memory at a time, and rows of a padded vocabulary become zero. Checks the whole file against the config
/// first, also when `params` is one stage of the model. UserError naming file, tensor and both shapes: a
/// tensor is missing, has another shape, or is not one of the model's. Allowed extras: rotary inv_freq
/// buffers, and the tied model's lm_head.weight when it equals the embedding.
void load_weights(const HfWeights& weights, const model::TransformerConfig& config,
                  std::span<const ParamRef> params);

/// A Hugging Face model: its config, where its weights are, and how they are stored.
class AutoBridge {
 public:
  /// Opens the model folder `path`. UserError as read_hf_config and HfWeights.
  static AutoBridge from_hf_pretrained(const std::filesystem::path& path);
  /// A model without weights, to be initialised at random.
  static AutoBridge from_config(HfConfig config);
  /// The same from a config.json, or the folder that holds one.
  static AutoBridge from_config(const std::filesystem::path& path) {
    return from_config(read_hf_config(path));
  }

  const model::TransformerConfig& config() const { return config_.config; }
  const HfConfig& hf_config() const { return config_; }
  bool has_weights() const { return weights_ != nullptr; }

  /// The text of a config.json for weights of that dtype.
  std::string config_json(at::ScalarType dtype) const { return export_hf_config(config_, dtype); }

  /// The dtype in which an export stores this tensor: the source's, or the config's; none where neither says
  /// one.
  std::optional<at::ScalarType> export_dtype(const std::string& name) const {
    return weights_ ? std::optional(weights_->dtype(name)) : config_.dtype;
  }

  /// As the free function, from the folder this bridge was made of. UserError when it has no weights.
  void load_weights(std::span<const ParamRef> params) const;

  /// Writes a folder that transformers loads: weights, config.json, and the source's tokenizer and other
  /// small files. Names, order and dtypes are those of the source's weights; without a source, all tensors
  /// have the config's dtype. `params` are all of the model's, whole. The folder is replaced at once or not
  /// at all, as HfWeightsWriter does it.
  /// `dtype`: all tensors get it instead, and config.json says so.
  void export_weights(const std::filesystem::path& folder, std::span<const ParamRef> params,
                      std::optional<at::ScalarType> dtype = std::nullopt,
                      std::uint64_t shard_limit = kDefaultShardLimit) const;

 private:
  AutoBridge(HfConfig config, std::unique_ptr<HfWeights> weights)
      : config_(std::move(config)), weights_(std::move(weights)) {}

  HfConfig config_;
  std::unique_ptr<HfWeights> weights_;
};

}  // namespace mgfl::bridge
