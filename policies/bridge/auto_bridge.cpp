#include "policies/bridge/auto_bridge.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/bridge/hf_tensors.hpp"

namespace mgfl::bridge {
namespace {

namespace fs = std::filesystem;

const std::string kHead = "lm_head.weight", kEmbedding = "model.embed_tokens.weight",
                  kValueHead = "score.weight", kValueHeadBias = "score.bias";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_buffer(std::string_view name) { return ends_with(name, "rotary_emb.inv_freq"); }

// What stands in a language model's weights and is no part of a critic made of it.
bool is_unused(std::string_view name, const model::TransformerConfig& config) {
  return name == kHead && is_critic_of_language_model(config);
}

void check_shape(const HfWeights& weights, const std::string& name, const std::vector<std::int64_t>& shape) {
  check_user(weights.shape(name) == shape, weights.file(name).path().string(), ": tensor \"", name,
             "\" has shape [", join(weights.shape(name)), "], expected [", join(shape), "] from config.json");
}

// Everything that can be found wrong before a single weight is touched.
void check_weights(const HfWeights& weights, const model::TransformerConfig& config) {
  std::unordered_set<std::string> expected;
  const bool may_lack_head = is_critic_of_language_model(config) && !weights.has(kValueHeadBias);
  for (const auto& [name, shape] : hf_parameters(config)) {
    expected.insert(name);
    if (name == kValueHead && may_lack_head && !weights.has(name)) continue;
    check_user(weights.has(name), weights.folder().string(), ": tensor \"", name,
               "\" is missing from the weights of this ", config.architecture);
    check_shape(weights, name, shape);
    check_user(c10::isFloatingType(weights.dtype(name)), weights.file(name).path().string(), ": tensor \"",
               name, "\" has dtype ", weights.file(name).entry(name).dtype,
               ", expected a floating-point one");
  }
  for (const std::string& name : weights.names()) {
    if (expected.count(name) != 0 || is_buffer(name)) continue;
    if (is_unused(name, config)) {
      check_shape(weights, name, {config.vocab_size, config.hidden_size});
      continue;
    }
    const std::string file = weights.file(name).path().string();
    check_user(name == kHead && config.share_embeddings_and_output_weights, file, ": tensor \"", name,
               "\" is not part of this ", config.architecture,
               "; do config.json and the weights belong together?");
    check_user(weights.shape(name) == weights.shape(kEmbedding) &&
                   weights.tensor(name).to(weights.dtype(kEmbedding)).equal(weights.tensor(kEmbedding)),
               file, ": tensor \"", name, "\" differs from \"", kEmbedding,
               "\", but config.json ties them (tie_word_embeddings true); set it to false to train both");
    weights.release(name);
    weights.release(kEmbedding);
  }
}

bool is_small_file(std::string_view name) {
  constexpr std::string_view kNames[] = {"generation_config.json", "special_tokens_map.json", "vocab.json",
                                         "merges.txt", "added_tokens.json"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         name.substr(0, 9) == "tokenizer" || ends_with(name, ".jinja");
}

}  // namespace

void load_weights(const HfWeights& weights, const model::TransformerConfig& config,
                  std::span<const ParamRef> params) {
  check_weights(weights, config);
  for (const ParamRef& param : params) {
    for (const HfPart& part : hf_parts(config, *param.desc, *param.value)) {
      if (!weights.has(part.name)) continue;  // a new value head
      take_part(*param.desc, part, weights.tensor(part.name), *param.value);
      weights.release(part.name);
    }
  }
}

ModelProvider::ModelProvider(model::TransformerConfig config, std::shared_ptr<const HfWeights> weights)
    : config_(std::move(config)), weights_(std::move(weights)) {
  for (Mapping& mapping : mappings(config_))
    if (!weights_ || !weights_->has(mapping.hf.front().name))
      params_to_initialize_.push_back(std::move(mapping.param.name));
}

void ModelProvider::load_weights(std::span<const ParamRef> params) const {
  if (weights_) bridge::load_weights(*weights_, config_, params);
}

AutoBridge AutoBridge::from_hf_pretrained(const fs::path& path, model::Head head) {
  HfConfig config = read_hf_config(path, head);
  auto weights = std::make_shared<const HfWeights>(path);
  config.config.add_value_head_bias = config.value_head_can_have_bias && weights->has(kValueHeadBias);
  return {std::move(config), std::move(weights)};
}

AutoBridge AutoBridge::from_config(HfConfig config) { return {std::move(config), nullptr}; }

std::optional<at::ScalarType> AutoBridge::export_dtype(const std::string& name) const {
  if (!weights_) return config_.dtype;
  return weights_->dtype(weights_->has(name) ? name : kEmbedding);
}

ModelProvider AutoBridge::to_megatron_provider(bool load_weights) const {
  check_user(!load_weights || weights_ != nullptr, config_.file.string(),
             ": this model was made from a config alone and has no weights");
  return {config(), load_weights ? weights_ : nullptr};
}

void AutoBridge::load_weights(std::span<const ParamRef> params) const {
  to_megatron_provider(true).load_weights(params);
}

bool AutoBridge::has_tied_head_copy() const {
  return weights_ && config().share_embeddings_and_output_weights && weights_->has(kHead);
}

std::vector<PlannedTensor> AutoBridge::plan_export(std::span<const ParamRef> params) const {
  std::unordered_map<std::string, PlannedTensor> tensors;
  std::vector<std::string> order;
  for (std::size_t i = 0; i < params.size(); ++i) {
    for (HfTensor& part : hf_tensors(config(), *params[i].desc, *params[i].value)) {
      order.push_back(part.name);
      const std::string name = part.name;
      check_run(tensors.emplace(name, PlannedTensor{std::move(part), i}).second, "parameter ",
                params[i].desc->name, " is given twice");
    }
  }
  for (const NamedShape& expected : hf_parameters(config()))
    check_run(tensors.count(expected.name) != 0, config_.file.string(),
              ": no parameter was given for tensor \"", expected.name, "\"");
  if (weights_) {
    // Then so does the export.
    if (has_tied_head_copy()) {
      PlannedTensor head = tensors.at(kEmbedding);
      head.name = kHead;
      tensors.emplace(kHead, std::move(head));
    }
    std::vector<std::string> sources;
    for (const std::string& name : weights_->names())
      if (!is_buffer(name) && !is_unused(name, config())) sources.push_back(name);
    for (const std::string& name : order)
      if (!weights_->has(name)) sources.push_back(name);
    order = std::move(sources);
  }

  std::vector<PlannedTensor> plan;
  for (const std::string& name : order) {
    const auto found = tensors.find(name);
    check_run(found != tensors.end(), config_.file.string(), ": the source's tensor \"", name,
              "\" is none of the model's");
    plan.push_back(std::move(found->second));
  }
  return plan;
}

void AutoBridge::save_hf_pretrained(const fs::path& folder, std::span<const ParamRef> params,
                                    function_ref<void(std::size_t)> prepare,
                                    std::optional<at::ScalarType> dtype, std::uint64_t shard_limit) const {
  const std::vector<PlannedTensor> plan = plan_export(params);
  std::vector<checkpoint::TensorSpec> specs;
  bool has_config_dtype = false;
  for (const PlannedTensor& part : plan) {
    const at::ScalarType own = export_dtype(part.name).value_or(part.view.scalar_type());
    specs.push_back({part.name, dtype.value_or(own), part.shape});
    has_config_dtype = has_config_dtype || config_.dtype == specs.back().dtype;
  }
  HfWeightsWriter writer(folder, specs, shard_limit);
  // The views themselves: the writer converts piece by piece, so that no tensor is there twice.
  for (std::size_t i = 0; i < params.size(); ++i) {
    prepare(i);
    for (const HfTensor& part : hf_tensors(config(), *params[i].desc, *params[i].value)) {
      writer.write(part.name, part.view);
      if (part.name == kEmbedding && has_tied_head_copy()) writer.write(kHead, part.view);
    }
  }
  // Mixed dtypes keep what config.json says, if any tensor has it.
  writer.write_text("config.json",
                    export_hf_config(config_, has_config_dtype ? *config_.dtype : specs.front().dtype));
  std::error_code error;
  const fs::path source = config_.file.parent_path();
  for (const auto& entry : fs::directory_iterator(source.empty() ? "." : source, error))
    if (entry.is_regular_file() && is_small_file(entry.path().filename().string()))
      writer.copy_file(entry.path());
  writer.finish();
}

}  // namespace mgfl::bridge
