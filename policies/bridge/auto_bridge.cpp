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

const std::string kHead = "lm_head.weight", kEmbedding = "model.embed_tokens.weight";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_buffer(std::string_view name) { return ends_with(name, "rotary_emb.inv_freq"); }

// Everything that can be found wrong before a single weight is touched.
void check_weights(const HfWeights& weights, const model::TransformerConfig& config) {
  std::unordered_set<std::string> expected;
  for (const auto& [name, shape] : hf_parameters(config)) {
    expected.insert(name);
    check_user(weights.has(name), weights.folder().string(), ": tensor \"", name,
               "\" is missing from the weights of this ", config.architecture);
    const std::string file = weights.file(name).path().string();
    check_user(weights.shape(name) == shape, file, ": tensor \"", name, "\" has shape [",
               join(weights.shape(name)), "], expected [", join(shape), "] from config.json");
    check_user(c10::isFloatingType(weights.dtype(name)), file, ": tensor \"", name, "\" has dtype ",
               weights.file(name).entry(name).dtype, ", expected a floating-point one");
  }
  for (const std::string& name : weights.names()) {
    if (expected.count(name) != 0 || is_buffer(name)) continue;
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
    for (const HfTensor& part : hf_tensors(config, *param.desc, *param.value)) {
      part.view.copy_(weights.tensor(part.name).view(part.view.sizes()));
      weights.release(part.name);
      if (const std::int64_t padding = param.value->size(0) - part.view.size(0);
          padding > 0 && param.desc->placement == PlacementKind::vocab)
        param.value->narrow(0, part.view.size(0), padding).zero_();
    }
  }
}

AutoBridge AutoBridge::from_hf_pretrained(const fs::path& path) {
  return {read_hf_config(path), std::make_unique<HfWeights>(path)};
}

AutoBridge AutoBridge::from_config(HfConfig config) { return {std::move(config), nullptr}; }

void AutoBridge::load_weights(std::span<const ParamRef> params) const {
  check_user(weights_ != nullptr, config_.file.string(),
             ": this model was made from a config alone and has no weights");
  bridge::load_weights(*weights_, config(), params);
}

void AutoBridge::export_weights(const fs::path& folder, std::span<const ParamRef> params,
                                std::optional<at::ScalarType> dtype, std::uint64_t shard_limit) const {
  std::unordered_map<std::string, HfTensor> tensors;
  std::vector<std::string> order;
  for (const ParamRef& param : params) {
    for (HfTensor& part : hf_tensors(config(), *param.desc, *param.value)) {
      order.push_back(part.name);
      const std::string name = part.name;
      check_run(tensors.emplace(name, std::move(part)).second, "parameter ", param.desc->name,
                " is given twice");
    }
  }
  for (const NamedShape& expected : hf_parameters(config()))
    check_run(tensors.count(expected.name) != 0, folder.string(), ": no parameter was given for tensor \"",
              expected.name, "\"");
  if (weights_) {
    // The source may hold the tied head as a second copy; then so does the export.
    if (config().share_embeddings_and_output_weights && weights_->has(kHead)) {
      HfTensor head = tensors.at(kEmbedding);
      head.name = kHead;
      tensors.emplace(kHead, std::move(head));
    }
    order.clear();
    for (const std::string& name : weights_->names())
      if (!is_buffer(name)) order.push_back(name);
  }

  std::vector<checkpoint::TensorSpec> specs;
  bool has_config_dtype = false;
  for (const std::string& name : order) {
    const auto found = tensors.find(name);
    check_run(found != tensors.end(), folder.string(), ": the source's tensor \"", name,
              "\" is none of the model's");
    const at::ScalarType own = export_dtype(name).value_or(found->second.view.scalar_type());
    specs.push_back({name, dtype.value_or(own), found->second.shape});
    has_config_dtype = has_config_dtype || config_.dtype == specs.back().dtype;
  }
  HfWeightsWriter writer(folder, specs, shard_limit);
  for (const auto& spec : specs) writer.write(spec.name, tensors.at(spec.name).view);
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
