#include "policies/bridge/hf_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/bridge/json.hpp"

namespace mgfl::bridge {
namespace {

using Json = nlohmann::ordered_json;
using model::Head;
using model::RopeScaling;
using model::RopeType;
using model::TransformerConfig;

enum class Windows {
  none,
  sliding_window,
  switched
};  // none; every layer; Qwen's use_sliding_window and max_window_layers
enum class QkvBias { never, attention_bias, always };

// An architecture's name is its family's and its kind's, such as "Llama" and "ForCausalLM". A critic made of
// a language model is exported as the first kind of value model.
struct Kind {
  std::string_view name;
  Head head;
  bool bias;  // whether a value head can have one
};

constexpr Kind kKinds[] = {{"ForCausalLM", Head::language_model, true},
                           {"ForTokenClassification", Head::value, true},
                           {"ForSequenceClassification", Head::value, false}};

// What a family's classes in transformers fix or take where config.json is silent.
struct Family {
  std::string_view name;
  std::string_view model_type;
  std::int64_t max_position_embeddings;
  std::int64_t num_key_value_heads;  // 0: as many as query heads
  std::int64_t head_dim;             // 0: hidden_size / num_attention_heads
  std::int64_t eos_token_id;         // -1: none
  QkvBias qkv_bias;
  bool mlp_bias;  // whether the key exists
  bool qk_layernorm;
  Windows windows;
};

constexpr std::array kFamilies = {
    Family{"Llama", "llama", 2048, 0, 0, 2, QkvBias::attention_bias, true, false, Windows::none},
    Family{"Mistral", "mistral", 131072, 8, 0, 2, QkvBias::never, false, false, Windows::sliding_window},
    Family{"Qwen2", "qwen2", 32768, 32, 0, -1, QkvBias::always, false, false, Windows::switched},
    Family{"Qwen3", "qwen3", 32768, 32, 128, -1, QkvBias::attention_bias, false, true, Windows::switched},
};

constexpr double kRmsNormEps = 1e-6, kInitializerRange = 0.02, kRopeTheta = 10000.0;
constexpr std::int64_t kSlidingWindow = 4096, kMaxWindowLayers = 28;

// One JSON object with typed access: null counts as missing, and no type is converted into another.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  /// The value, or nullptr when the key is missing or null.
  const Json* find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has_key(std::string_view key) const { return object_.contains(key); }  // null included

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw UserError(concat(where_, ": ", parts...));
  }

  std::optional<std::int64_t> integer(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return integer(key, *value);
  }
  std::int64_t integer(std::string_view key, const Json& value) const {
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= (std::uint64_t{1} << 62)
                                                 : value.is_number_integer();
    if (!fits) fail("\"", key, "\" is ", value.dump(), ", expected a whole number");
    return value.get<std::int64_t>();
  }
  std::int64_t required_integer(std::string_view key) const {
    const auto value = integer(key);
    if (!value) fail("required key \"", key, "\" is missing or null");
    return *value;
  }

  std::optional<double> number(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) fail("\"", key, "\" is ", value->dump(), ", expected a number");
    return value->get<double>();
  }
  double required_number(std::string_view key, std::string_view because) const {
    const auto value = number(key);
    if (!value) fail("required key \"", key, "\" is missing or null, ", because, " needs it");
    return *value;
  }

  std::optional<bool> boolean(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) fail("\"", key, "\" is ", value->dump(), ", expected true or false");
    return value->get<bool>();
  }

  std::optional<std::string> string(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) fail("\"", key, "\" is ", value->dump(), ", expected a string");
    return value->get<std::string>();
  }

  std::optional<Fields> object(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) fail("\"", key, "\" is ", value->dump(), ", expected a JSON object");
    return Fields(*value, concat(where_, ": \"", key, "\""));
  }

  bool empty() const { return object_.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(object_.size()); }

 private:
  const Json& object_;
  std::string where_;
};

struct Architecture {
  const Family& family;
  const Kind& kind;
  std::string name;
};

template <class Take>
void for_each_architecture(const Take& take) {
  for (const Kind& kind : kKinds)
    for (const Family& family : kFamilies) take(Architecture{family, kind, concat(family.name, kind.name)});
}

std::optional<Architecture> find_architecture(std::string_view name) {
  std::optional<Architecture> found;
  for_each_architecture([&](const Architecture& architecture) {
    if (architecture.name == name) found.emplace(architecture);
  });
  return found;
}

Architecture read_architecture(const Fields& fields) {
  const std::vector<std::string> known = supported_architectures();
  const Json* names = fields.find("architectures");
  if (names == nullptr)
    fields.fail("required key \"architectures\" is missing or null; mgfl supports ", join(known));
  if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string())
    fields.fail("\"architectures\" is ", names->dump(), ", expected a list of one name; mgfl supports ",
                join(known));
  const auto name = (*names)[0].get<std::string>();
  const auto found = find_architecture(name);
  if (!found) fields.fail("architecture \"", name, "\" is not supported; mgfl supports ", join(known));
  const auto type = fields.string("model_type");
  if (type && *type != found->family.model_type)
    fields.fail("\"model_type\" is \"", *type, "\", but architecture ", name, " goes with \"",
                found->family.model_type, "\"");
  return *found;
}

// A value model gives one number a position. transformers takes the number of labels from id2label, else from
// num_labels, else 2; label2id alone says nothing there.
void check_one_label(const Fields& fields, const std::string& architecture) {
  const auto size_of = [&](std::string_view key) -> std::optional<std::int64_t> {
    const auto object = fields.object(key);
    return object ? std::optional(object->size()) : std::nullopt;
  };
  const auto ids = size_of("id2label"), labels = size_of("label2id"), number = fields.integer("num_labels");
  for (const auto& [key, other] : {std::pair("num_labels", number), std::pair("label2id", labels)})
    if (ids && other && *ids != *other)
      fields.fail("\"id2label\" says ", *ids, " labels, but \"", key, "\" ", *other, "; keep one");
  if (!ids && !number)
    fields.fail("\"id2label\" is missing, and transformers then gives this ", architecture,
                " 2 labels, but a value model has 1; where score.weight has one row, add \"id2label\": "
                "{\"0\": \"LABEL_0\"}");
  if (const std::int64_t count = ids ? *ids : *number; count != 1)
    fields.fail("this ", architecture, " has ", count, " labels, but a value model has 1 (\"id2label\")");
}

// Things that would change the model's mathematics and that no policy of ours computes.
void refuse_unsupported(const Fields& fields) {
  if (const Json* quantization = fields.find("quantization_config"))
    fields.fail("\"quantization_config\" is set (", quantization->dump().substr(0, 80),
                "); quantized weights cannot be trained, convert the model to BF16 first");
  if (const auto tp = fields.integer("pretraining_tp"); tp && *tp != 1)
    fields.fail("\"pretraining_tp\" is ", *tp, ", only 1 is supported");
  if (const auto activation = fields.string("hidden_act"); activation && *activation != "silu")
    fields.fail("\"hidden_act\" is \"", *activation, "\", only \"silu\" is supported");
  if (const auto dropout = fields.number("attention_dropout"); dropout && *dropout != 0)
    fields.fail("\"attention_dropout\" is ", *dropout, ", only 0 is supported");
}

void refuse_partial_rotary(const Fields& fields) {
  if (const auto part = fields.number("partial_rotary_factor"); part && *part != 1)
    fields.fail("\"partial_rotary_factor\" is ", *part, ", only 1 is supported");
}

RopeType read_rope_type(const Fields& rope) {
  const auto name = rope.string("rope_type");
  const auto old_name = rope.string("type");
  if (name && old_name && *name != *old_name)
    rope.fail("\"rope_type\" is \"", *name, "\" but \"type\" is \"", *old_name, "\"; keep one");
  const std::string type = name ? *name : old_name.value_or("default");
  if (type == "default") return RopeType::standard;
  if (type == "linear") return RopeType::linear;
  if (type == "llama3") return RopeType::llama3;
  if (type == "yarn") return RopeType::yarn;
  rope.fail("rope_type \"", type, "\" is not supported; mgfl supports default, linear, llama3, yarn");
}

// The magnitude that yarn gives cos and sin, as transformers derives it.
double yarn_attention_factor(const Fields& rope, double factor) {
  if (const auto given = rope.number("attention_factor")) return *given;
  const auto magnitude = [&](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  const double mscale = rope.number("mscale").value_or(0),
               mscale_all_dim = rope.number("mscale_all_dim").value_or(0);
  if (mscale != 0 && mscale_all_dim != 0) return magnitude(mscale) / magnitude(mscale_all_dim);
  return magnitude(1);
}

RopeScaling read_scaling(const Fields& rope, const Fields& top) {
  RopeScaling scaling;
  scaling.type = read_rope_type(rope);
  refuse_partial_rotary(rope);
  if (scaling.type == RopeType::standard) return scaling;
  const std::string because = scaling.type == RopeType::llama3 ? "rope type llama3"
                              : scaling.type == RopeType::yarn ? "rope type yarn"
                                                               : "rope type linear";
  scaling.factor = rope.required_number("factor", because);
  if (scaling.type == RopeType::linear) return scaling;
  // transformers lets a top-level original_max_position_embeddings win; two that differ are more likely a
  // mistake.
  const auto outer = top.number("original_max_position_embeddings");
  const auto inner = rope.number("original_max_position_embeddings");
  if (outer && inner && *outer != *inner)
    rope.fail("\"original_max_position_embeddings\" is ", *inner, ", but ", *outer,
              " at the top of the file; keep one");
  scaling.original_max_position_embeddings =
      outer ? *outer : rope.required_number("original_max_position_embeddings", because);
  if (scaling.type == RopeType::llama3) {
    scaling.low_freq_factor = rope.required_number("low_freq_factor", because);
    scaling.high_freq_factor = rope.required_number("high_freq_factor", because);
    return scaling;
  }
  scaling.beta_fast = rope.number("beta_fast").value_or(scaling.beta_fast);
  scaling.beta_slow = rope.number("beta_slow").value_or(scaling.beta_slow);
  scaling.truncate = rope.boolean("truncate").value_or(scaling.truncate);
  scaling.attention_factor = yarn_attention_factor(rope, scaling.factor);
  return scaling;
}

void read_rope(const Fields& fields, TransformerConfig& config) {
  refuse_partial_rotary(fields);
  const auto parameters = fields.object("rope_parameters");  // transformers 5
  const auto scaling = fields.object("rope_scaling");        // transformers 4
  const auto old_theta = fields.number("rope_theta");
  std::optional<double> theta = old_theta;
  const auto take_theta = [&](const Fields& rope) {
    const auto inner = rope.number("rope_theta");
    if (inner && theta && *inner != *theta)
      rope.fail("\"rope_theta\" is ", *inner, ", but the file also gives ", *theta, "; keep one");
    if (inner) theta = inner;
  };
  if (parameters) take_theta(*parameters);
  if (scaling) take_theta(*scaling);
  config.rotary_base = theta.value_or(kRopeTheta);
  // Nested by kind of layer, as models with two kinds of attention have it: none of the supported ones.
  for (const char* kind : {"full_attention", "sliding_attention"})
    if (parameters && parameters->find(kind) != nullptr)
      parameters->fail("holds parameters for each kind of layer (\"", kind, "\"), which is not supported");
  if (parameters && !parameters->empty()) config.rope_scaling = read_scaling(*parameters, fields);
  if (scaling && !scaling->empty()) {
    const RopeScaling old = read_scaling(*scaling, fields);
    if (parameters && !parameters->empty() && !(old == config.rope_scaling))
      fields.fail("\"rope_parameters\" and \"rope_scaling\" differ; keep one");
    config.rope_scaling = old;
  }
}

void read_heads(const Fields& fields, const Family& family, TransformerConfig& config) {
  config.num_attention_heads = fields.required_integer("num_attention_heads");
  const std::int64_t heads = config.num_attention_heads;
  if (heads < 1) fields.fail("\"num_attention_heads\" is ", heads, ", expected 1 or more");
  // transformers takes its class's number for a missing key and the query heads for null. The class's number
  // makes no sense for a model with fewer query heads.
  std::int64_t groups = heads;
  if (family.num_key_value_heads != 0 && !fields.has_key("num_key_value_heads"))
    groups = std::min(family.num_key_value_heads, heads);
  config.num_query_groups = fields.integer("num_key_value_heads").value_or(groups);
  if (config.num_query_groups < 1 || heads % config.num_query_groups != 0)
    fields.fail("\"num_key_value_heads\" is ", config.num_query_groups,
                ", which does not divide num_attention_heads ", heads);
  if (const auto head_dim = fields.integer("head_dim")) {
    if (*head_dim < 1) fields.fail("\"head_dim\" is ", *head_dim, ", expected 1 or more");
    config.kv_channels = *head_dim;
  } else if (family.head_dim != 0) {
    config.kv_channels = family.head_dim;
  } else {
    if (config.hidden_size % heads != 0)
      fields.fail("\"head_dim\" is missing, and hidden_size ", config.hidden_size,
                  " is no multiple of num_attention_heads ", heads);
    config.kv_channels = config.hidden_size / heads;
  }
}

void read_windows(const Fields& fields, const Family& family, TransformerConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_layers);
  config.window_size.assign(layers, 0);
  std::int64_t window = 0;
  std::int64_t first = 0;
  const bool on =
      family.windows == Windows::sliding_window ||
      (family.windows == Windows::switched && fields.boolean("use_sliding_window").value_or(false));
  if (on) {
    // Null is "no window" here, and only a missing key means the class's default.
    window = fields.has_key("sliding_window") ? fields.integer("sliding_window").value_or(0) : kSlidingWindow;
    if (fields.find("sliding_window") != nullptr && window < 1)
      fields.fail("\"sliding_window\" is ", window, ", expected 1 or more, or null");
    if (family.windows == Windows::switched)
      first = fields.integer("max_window_layers").value_or(kMaxWindowLayers);
  }
  for (std::size_t layer = 0; layer < layers; ++layer)
    if (static_cast<std::int64_t>(layer) >= first) config.window_size[layer] = window;

  const Json* types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != layers)
    fields.fail("\"layer_types\" is ", types->dump(), ", expected a list of ", layers, " names, one a layer");
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const Json& type = (*types)[layer];
    const bool sliding = type == "sliding_attention";
    if (!sliding && type != "full_attention")
      fields.fail("\"layer_types\"[", layer, "] is ", type.dump(),
                  ", expected \"full_attention\" or \"sliding_attention\"");
    if (family.windows == Windows::switched) {
      if (sliding && window == 0)
        fields.fail("\"layer_types\"[", layer,
                    "] is \"sliding_attention\", but there is no window: set \"use_sliding_window\" and "
                    "\"sliding_window\"");
      config.window_size[layer] = sliding ? window : 0;
    } else if (sliding != (window != 0)) {
      fields.fail("\"layer_types\"[", layer, "] is ", type.dump(), ", but all layers of ",
                  config.architecture, " have ",
                  window != 0 ? concat("a window of ", window) : std::string("no window"));
    }
  }
}

std::vector<std::int64_t> read_eos(const Fields& fields, const Family& family) {
  if (!fields.has_key("eos_token_id"))
    return family.eos_token_id < 0 ? std::vector<std::int64_t>{} : std::vector{family.eos_token_id};
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr) return {};
  if (!value->is_array()) return {fields.integer("eos_token_id", *value)};
  std::vector<std::int64_t> tokens;
  for (const Json& token : *value) tokens.push_back(fields.integer("eos_token_id", token));
  return tokens;
}

constexpr std::pair<std::string_view, at::ScalarType> kDtypes[] = {
    {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}, {"float64", at::kDouble}};

std::optional<at::ScalarType> read_dtype(const Fields& fields) {
  const auto name = fields.string("dtype");
  const auto old_name = fields.string("torch_dtype");
  if (name && old_name && *name != *old_name)
    fields.fail("\"dtype\" is \"", *name, "\" but \"torch_dtype\" is \"", *old_name, "\"; keep one");
  if (!name && !old_name) return std::nullopt;
  const std::string& chosen = name ? *name : *old_name;
  for (const auto& [known, type] : kDtypes)
    if (known == chosen) return type;
  fields.fail("dtype \"", chosen, "\" is not supported; mgfl supports float32, bfloat16, float16, float64");
}

}  // namespace

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for_each_architecture([&](const Architecture& architecture) { names.push_back(architecture.name); });
  return names;
}

HfConfig read_hf_config(const std::filesystem::path& path, Head head) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  check_user(std::filesystem::exists(file, ignored), file.string(),
             ": no such file; a Hugging Face model folder holds config.json and *.safetensors");
  return parse_hf_config(read_text(file), file, head);
}

HfConfig parse_hf_config(std::string text, const std::filesystem::path& source, Head head) {
  const Json json = parse_json(text, source.string());
  check_user(json.is_object(), source.string(), ": is no JSON object");
  const Fields fields(json, source.string());
  HfConfig result{.config = {}, .text = std::move(text), .dtype = read_dtype(fields), .file = source};
  TransformerConfig& config = result.config;
  const Architecture architecture = read_architecture(fields);
  const Family& family = architecture.family;
  if (architecture.kind.head == Head::value) {
    if (head != Head::value)
      fields.fail(
          "architecture ", architecture.name,
          " is a value model, no language model; mgfl score and mgfl train take it with --value-head; in C++ "
          "load it with Head::value (MegatronEngineWithValueHead)");
    check_one_label(fields, architecture.name);
  }
  refuse_unsupported(fields);

  config.architecture = architecture.name;
  config.num_layers = fields.required_integer("num_hidden_layers");
  config.hidden_size = fields.required_integer("hidden_size");
  config.ffn_hidden_size = fields.required_integer("intermediate_size");
  config.vocab_size = fields.required_integer("vocab_size");
  config.max_position_embeddings =
      fields.integer("max_position_embeddings").value_or(family.max_position_embeddings);
  config.layernorm_epsilon = fields.number("rms_norm_eps").value_or(kRmsNormEps);
  config.init_method_std = fields.number("initializer_range").value_or(kInitializerRange);
  config.value_head = head == Head::value;
  result.value_head_can_have_bias = config.value_head && architecture.kind.bias &&
                                    fields.boolean("token_classification_bias").value_or(true);
  config.share_embeddings_and_output_weights =
      fields.boolean("tie_word_embeddings").value_or(false) && !config.value_head;
  config.qk_layernorm = family.qk_layernorm;
  const bool attention_bias =
      family.qkv_bias == QkvBias::attention_bias && fields.boolean("attention_bias").value_or(false);
  config.add_qkv_bias = attention_bias || family.qkv_bias == QkvBias::always;
  config.add_proj_bias = attention_bias;
  config.add_mlp_bias = family.mlp_bias && fields.boolean("mlp_bias").value_or(false);
  config.eos_token_ids = read_eos(fields, family);
  config.pad_token_id = fields.integer("pad_token_id").value_or(-1);
  read_heads(fields, family, config);
  if (config.num_layers < 1 || config.num_layers > 100000)
    fields.fail("\"num_hidden_layers\" is ", config.num_layers, ", expected 1 to 100000");
  read_windows(fields, family, config);
  read_rope(fields, config);
  try {
    model::validate(config);
  } catch (const UserError& error) {
    fields.fail(error.what());
  }
  return result;
}

bool is_critic_of_language_model(const TransformerConfig& config) {
  const auto architecture = find_architecture(config.architecture);
  return config.value_head && architecture && architecture->kind.head == Head::language_model;
}

std::string export_hf_config(const HfConfig& config, at::ScalarType dtype) {
  Json json = parse_json(config.text, config.file.string());
  bool changed = false;
  const auto set = [&](const std::string& key, Json value) {
    if (json.contains(key) && json[key] == value) return;
    json[key] = std::move(value);
    changed = true;
  };
  if (is_critic_of_language_model(config.config)) {
    const auto value_model = std::find_if(std::begin(kKinds), std::end(kKinds),
                                          [](const Kind& kind) { return kind.head == Head::value; });
    const auto name = concat(find_architecture(config.config.architecture)->family.name, value_model->name);
    set("architectures", Json::array({name}));
    set("id2label", Json::object({{"0", "LABEL_0"}}));
    set("label2id", Json::object({{"LABEL_0", 0}}));
    if (json.contains("num_labels")) set("num_labels", 1);
  }
  set("head_dim", config.config.kv_channels);
  for (const auto& [name, type] : kDtypes) {
    if (type != dtype) continue;
    const bool old_spelling = json.contains("torch_dtype");
    if (old_spelling) set("torch_dtype", name);
    if (!old_spelling || json.contains("dtype")) set("dtype", name);
  }
  return changed ? json.dump(2) + "\n" : config.text;
}

}  // namespace mgfl::bridge
