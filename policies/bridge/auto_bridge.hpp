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

#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/param.hpp"
#include "policies/bridge/hf_config.hpp"
#include "policies/bridge/hf_weights.hpp"
#include "policies/bridge/per_tensor_param.hpp"

namespace mgfl::bridge {

/// Copies what is this tensor-parallel rank's of the file's weights into the parameters' values, converting
/// dtypes; one tensor of the file is in memory at a time, and rows of a padded vocabulary become zero. Checks
/// the whole file against the config first, also when `params` is one stage of the model. UserError naming
/// file, tensor and both shapes: a tensor is missing, has another shape, or is not one of the model's.
/// Allowed extras: rotary inv_freq buffers, the tied model's lm_head.weight when it equals the embedding, and
/// the lm_head.weight of a language model of which a critic is made. Such a critic's value head may be
/// missing: then its values stay as they are.
void load_weights(const HfWeights& weights, const model::TransformerConfig& config,
                  std::span<const ParamRef> params);

/// What an engine needs to make a model and give its parameters their values: first those of
/// params_to_initialize() at random, then load_weights.
// Mirrors megatron.bridge.models.model_provider.ModelProviderMixin.
class ModelProvider {
 public:
  /// `weights`: null when all values are random.
  ModelProvider(model::TransformerConfig config, std::shared_ptr<const HfWeights> weights);

  const model::TransformerConfig& config() const { return config_; }

  /// Megatron's names of the parameters that load_weights leaves as they are, in the order of the forward
  /// pass: all without weights, the value head of a critic made of a language model, otherwise none.
  std::vector<std::string> params_to_initialize() const { return params_to_initialize_; }

  /// As the free function; without weights it does nothing.
  void load_weights(std::span<const ParamRef> params) const;

 private:
  model::TransformerConfig config_;
  std::shared_ptr<const HfWeights> weights_;
  std::vector<std::string> params_to_initialize_;
};

/// A Hugging Face model: its config, where its weights are, and how they are stored.
class AutoBridge {
 public:
  using head_type = model::Head;

  /// Opens the model folder `path`; `head` as in read_hf_config. A value head has a bias when the weights
  /// have one. UserError as read_hf_config and HfWeights.
  static AutoBridge from_hf_pretrained(const std::filesystem::path& path,
                                       model::Head head = model::Head::language_model);
  /// A model without weights, to be initialised at random.
  static AutoBridge from_config(HfConfig config);
  /// The same from a config.json, or the folder that holds one.
  static AutoBridge from_config(const std::filesystem::path& path,
                                model::Head head = model::Head::language_model) {
    return from_config(read_hf_config(path, head));
  }

  const model::TransformerConfig& config() const { return config_.config; }
  const HfConfig& hf_config() const { return config_; }
  bool has_weights() const { return weights_ != nullptr; }

  /// The text of a config.json for weights of that dtype.
  std::string config_json(at::ScalarType dtype) const { return export_hf_config(config_, dtype); }

  /// The dtype in which an export stores this tensor: the source's (its embedding's for a head that it
  /// lacks), or the config's; none where neither says one.
  std::optional<at::ScalarType> export_dtype(const std::string& name) const;

  /// How to make the model, with this folder's weights or at random. UserError when weights are asked for and
  /// this bridge has none.
  ModelProvider to_megatron_provider(bool load_weights = true) const;

  /// As the free function, from the folder this bridge was made of. UserError when it has no weights.
  void load_weights(std::span<const ParamRef> params) const;

  /// The model's tensors under their Hugging Face names, in the order of a saved folder: that of the source's
  /// weights, then what it lacks. `params` are all of the model's, and outlive the range. `dtype`: of all
  /// tensors; none: each parameter's own. `group`: the ranks that hold parts of the parameters, which walk
  /// the range together, see PerTensorParam. Megatron-Bridge's name.
  PerTensorParam export_hf_weights(std::span<const ParamRef> params,
                                   std::optional<at::ScalarType> dtype = std::nullopt,
                                   parallel::TensorParallelGroup group = {}) const {
    parallel::WholeValues whole(params, group);
    auto plan = plan_export(whole.params());
    return PerTensorParam(std::move(plan), std::move(whole), dtype);
  }
  /// The same under mbridge's name.
  PerTensorParam export_weights(std::span<const ParamRef> params,
                                std::optional<at::ScalarType> dtype = std::nullopt,
                                parallel::TensorParallelGroup group = {}) const {
    return export_hf_weights(params, dtype, group);
  }

  /// Writes a folder that transformers loads: weights, config.json, and the source's tokenizer and other
  /// small files. `params` are logical. Tensors and order are those of export_hf_weights, dtypes those of
  /// export_dtype. The folder is replaced at once or not at all, as HfWeightsWriter does it. `dtype`: all
  /// tensors get it instead, and config.json says so.
  void save_hf_pretrained(const std::filesystem::path& folder, std::span<const ParamRef> params,
                          std::optional<at::ScalarType> dtype = std::nullopt,
                          std::uint64_t shard_limit = kDefaultShardLimit) const {
    save_hf_pretrained(
        folder, params, [](std::size_t) {}, dtype, shard_limit);
  }
  /// The same of parameters whose values are there one at a time: `prepare` makes that of params[i], for each
  /// i in order.
  void save_hf_pretrained(const std::filesystem::path& folder, std::span<const ParamRef> params,
                          function_ref<void(std::size_t)> prepare,
                          std::optional<at::ScalarType> dtype = std::nullopt,
                          std::uint64_t shard_limit = kDefaultShardLimit) const;

 private:
  AutoBridge(HfConfig config, std::shared_ptr<const HfWeights> weights)
      : config_(std::move(config)), weights_(std::move(weights)) {}

  // Whether the source holds the tied head as a second copy of the embedding.
  bool has_tied_head_copy() const;

  // The tensors of an export, in its order.
  std::vector<PlannedTensor> plan_export(std::span<const ParamRef> params) const;

  HfConfig config_;
  std::shared_ptr<const HfWeights> weights_;
};

}  // namespace mgfl::bridge
