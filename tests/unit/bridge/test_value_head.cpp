// Critics: value models in and out bit for bit, critics made of language models, and folders that are
// neither.
#include <algorithm>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/bridge/json.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/bridge/model_folder.hpp"

namespace mgfl::bridge {
namespace {

namespace fs = std::filesystem;
using model::Head;
using test::check_same_weights;
using test::contains;
using test::edited;
using test::error_of;
using test::Parameters;
using test::read_file;
using test::same_bits;
using test::TemporaryFolder;
using test::write_file;

using Names = std::vector<std::string>;
using Tensors = std::map<std::string, Tensor>;

const fs::path kData = MGFL_TEST_DATA;

constexpr const char* kOneLabel = R"(, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0})";

std::string config_text(const std::string& architecture, const std::string& more) {
  return R"({"architectures": [")" + architecture +
         R"("], "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
          "vocab_size": 64)" +
         more + "}";
}

HfConfig parse(const std::string& architecture, const std::string& more, Head head = Head::value) {
  return parse_hf_config(config_text(architecture, more), "dir/config.json", head);
}

std::string refused(const std::string& architecture, const std::string& more, Head head = Head::value) {
  const std::string message = error_of([&] { parse(architecture, more, head); });
  if (message != "(no error)") CHECK(contains(message, "dir/config.json: "));
  return message;
}

Tensor counted(std::vector<std::int64_t> shape, float first) {
  Tensor tensor = empty(shape, at::kFloat);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.mutable_data_ptr<float>()[i] = first + static_cast<float>(i);
  return tensor;
}

TEST_CASE("a value model comes out as it went in: names, order, bits, config") {
  for (const char* config : {"config.json", "config_alt.json"}) {
    CAPTURE(config);
    TemporaryFolder folder;
    fs::create_directory(folder / "in");
    fs::copy_file(kData / "qwen3_value" / config, folder / "in" / "config.json");
    fs::copy_file(kData / "qwen3_value" / "model.safetensors", folder / "in" / "model.safetensors");
    const auto bridge = AutoBridge::from_hf_pretrained(folder / "in", Head::value);
    CHECK(bridge.config().value_head);
    CHECK(bridge.config().add_value_head_bias);
    CHECK_FALSE(bridge.config().share_embeddings_and_output_weights);  // whatever tie_word_embeddings says
    CHECK_FALSE(is_critic_of_language_model(bridge.config()));
    CHECK(bridge.config() == AutoBridge::from_hf_pretrained(kData / "qwen3_value", Head::value).config());
    Parameters params(bridge.config());
    const auto provider = bridge.to_megatron_provider(true);
    CHECK(provider.config() == bridge.config());
    CHECK(provider.params_to_initialize().empty());
    provider.load_weights(params.refs);
    const HfWeights source(kData / "qwen3_value");
    CHECK(same_bits(params["output_layer.weight"], source.tensor("score.weight")));
    CHECK(same_bits(params["output_layer.bias"], source.tensor("score.bias")));
    bridge.save_hf_pretrained(folder / "out", params.refs);
    const HfWeights out(folder / "out");
    check_same_weights(source, out);
    CHECK(out.names() == source.names());
    CHECK(read_file(folder / "out" / "config.json") == read_file(kData / "qwen3_value" / config));
  }
}

TEST_CASE("the value model's gradients go by the same table") {
  const HfWeights expected(kData / "qwen3_value" / "expected.safetensors");
  Names names;
  for (const std::string& name : expected.names())
    if (name.substr(0, 5) == "grad.") names.push_back(name.substr(5));
  const auto config = AutoBridge::from_hf_pretrained(kData / "qwen3_value", Head::value).config();
  CHECK(hf_parameters(config).size() == names.size());
  for (const auto& [name, shape] : hf_parameters(config)) {
    CHECK(std::count(names.begin(), names.end(), name) == 1);
    CHECK(expected.shape("grad." + name) == shape);
  }
}

// The folder of N1: hidden 2, four tokens, one layer, tied, with a head of its own in the file.
fs::path tiny_language_model(const TemporaryFolder& folder, const Tensors& changes = {},
                             const std::string& more = "") {
  const fs::path path = folder / "tiny";
  fs::remove_all(path);
  fs::create_directory(path);
  write_file(path / "config.json",
             R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 2, "intermediate_size": 2,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 4,
    "tie_word_embeddings": true, "dtype": "float32")" +
                 more + "}");
  const std::string layer = "model.layers.0.";
  Tensors tensors{{"lm_head.weight", counted({4, 2}, 100)},
                  {"model.embed_tokens.weight", counted({4, 2}, 1)},
                  {"model.norm.weight", counted({2}, 10)}};
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    tensors[layer + name + ".weight"] = counted({2, 2}, 20 + static_cast<float>(tensors.size()));
  for (const char* name :
       {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"})
    tensors[layer + name + ".weight"] = counted({2}, 60 + static_cast<float>(tensors.size()));
  for (const auto& [name, tensor] : changes)
    if (tensor.defined())
      tensors[name] = tensor;
    else
      tensors.erase(name);
  const std::vector<std::pair<std::string, Tensor>> list(tensors.begin(), tensors.end());
  checkpoint::write_safetensors(path / "model.safetensors", list);
  return path;
}

TEST_CASE("N1: a critic made of a language model has a head of its own, which the file lacks") {
  TemporaryFolder folder;
  const fs::path path = tiny_language_model(folder);
  const auto bridge = AutoBridge::from_hf_pretrained(path, Head::value);
  CHECK(bridge.config().value_head);
  CHECK_FALSE(bridge.config().add_value_head_bias);
  CHECK_FALSE(bridge.config().share_embeddings_and_output_weights);
  CHECK(is_critic_of_language_model(bridge.config()));
  const auto provider = bridge.to_megatron_provider(true);
  CHECK(provider.params_to_initialize() == Names{"output_layer.weight"});

  Parameters params(provider.config());
  CHECK((params["output_layer.weight"].sizes() == at::IntArrayRef({1, 2})));
  const Tensor head = params["output_layer.weight"];
  head.mutable_data_ptr<float>()[0] = .5;
  head.mutable_data_ptr<float>()[1] = -.25;
  provider.load_weights(params.refs);
  CHECK(head.const_data_ptr<float>()[0] == .5);  // untouched: no row of lm_head
  CHECK(head.const_data_ptr<float>()[1] == -.25);
  const HfWeights source(path);
  CHECK(same_bits(params["embedding.word_embeddings.weight"], source.tensor("model.embed_tokens.weight")));
  CHECK(same_bits(params["decoder.final_layernorm.weight"], source.tensor("model.norm.weight")));

  bridge.save_hf_pretrained(folder / "out", params.refs);
  const HfWeights out(folder / "out");
  Names expected;
  for (const std::string& name : source.names())
    if (name != "lm_head.weight") expected.push_back(name);
  for (const std::string& name : expected) CHECK(same_bits(out.tensor(name), source.tensor(name)));
  expected.push_back("score.weight");
  Names found = out.names();
  std::sort(expected.begin(), expected.end());
  std::sort(found.begin(), found.end());
  CHECK(found == expected);
  CHECK(same_bits(out.tensor("score.weight"), head));

  const auto again = AutoBridge::from_hf_pretrained(folder / "out", Head::value);
  CHECK_FALSE(is_critic_of_language_model(again.config()));
  CHECK(again.to_megatron_provider(true).params_to_initialize().empty());
  Parameters back(again.config());
  again.load_weights(back.refs);
  for (const auto& param : params.descs) CHECK(same_bits(back[param.name], params[param.name]));

  const auto message = error_of([&] { AutoBridge::from_hf_pretrained(folder / "out"); });
  CHECK(contains(message, (folder / "out" / "config.json").string()));
  CHECK(contains(message, "architecture Qwen3ForTokenClassification is a value model, no language model"));
  CHECK(contains(message, "mgfl score and mgfl train take it with --value-head; in C++ load it with"));
  CHECK(contains(message, "MegatronEngineWithValueHead"));

  // The same folder as a language model is tied, and its lm_head then has to be the embedding.
  const auto language_model = AutoBridge::from_hf_pretrained(path);
  CHECK(language_model.config().share_embeddings_and_output_weights);
  CHECK_FALSE(language_model.config().value_head);
  Parameters tied(language_model.config());
  CHECK(contains(error_of([&] { language_model.load_weights(tied.refs); }), "\"lm_head.weight\" differs"));
}

TEST_CASE("a critic's config.json: one label, all else as it was and where it was") {
  TemporaryFolder folder;
  const auto written = [&](const std::string& more) {
    const auto bridge = AutoBridge::from_hf_pretrained(tiny_language_model(folder, {}, more), Head::value);
    Parameters params(bridge.config());
    bridge.save_hf_pretrained(folder / "out", params.refs);
    CHECK(AutoBridge::from_hf_pretrained(folder / "out", Head::value).config().value_head);
    const std::string file = (folder / "out" / "config.json").string();
    CHECK(bridge.config_json(at::kFloat) == read_file(file));
    return parse_json(read_file(file), file);
  };
  const auto plain = written("");
  Names keys;
  for (const auto& [key, value] : plain.items()) keys.push_back(key);
  CHECK(keys == Names{"architectures", "hidden_size", "intermediate_size", "num_hidden_layers",
                      "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
                      "tie_word_embeddings", "dtype", "id2label", "label2id"});
  CHECK(plain["architectures"].dump() == R"(["Qwen3ForTokenClassification"])");
  CHECK(plain["id2label"].dump() == R"({"0":"LABEL_0"})");
  CHECK(plain["label2id"].dump() == R"({"LABEL_0":0})");
  CHECK(plain["tie_word_embeddings"] == true);
  CHECK(plain["hidden_size"] == 2);
  // Older transformers wrote the two labels of its default into every config.json.
  const auto old = written(R"(, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0,
    "LABEL_1": 1}, "num_labels": 2, "last": 1)");
  CHECK(old["id2label"].dump() == R"({"0":"LABEL_0"})");
  CHECK(old["label2id"].dump() == R"({"LABEL_0":0})");
  CHECK(old["num_labels"] == 1);
  CHECK(old.back() == 1);
}

TEST_CASE("each family's language model becomes the critic that is exported as its ForTokenClassification") {
  for (const std::string family : {"llama", "mistral", "qwen2", "qwen3"}) {
    CAPTURE(family);
    TemporaryFolder folder;
    const auto bridge = AutoBridge::from_hf_pretrained(kData / family, Head::value);
    Parameters params(bridge.config());
    CHECK(bridge.to_megatron_provider().params_to_initialize() == Names{"output_layer.weight"});
    bridge.load_weights(params.refs);
    params["output_layer.weight"].fill_(.125);
    bridge.save_hf_pretrained(folder / "out", params.refs);
    const HfWeights source(kData / family), out(folder / "out");
    for (const std::string& name : out.names())
      if (name != "score.weight") CHECK(same_bits(out.tensor(name), source.tensor(name)));
    CHECK(out.has("score.weight"));
    CHECK_FALSE(out.has("lm_head.weight"));
    const auto name =
        model::TransformerConfig(AutoBridge::from_hf_pretrained(folder / "out", Head::value).config())
            .architecture;
    CHECK(name == read_hf_config(kData / family).config.architecture.substr(0, family.size()) +
                      "ForTokenClassification");
  }
}

TEST_CASE("a new head is stored in the dtype of the source's embedding") {
  TemporaryFolder folder;
  const auto path =
      tiny_language_model(folder, {{"model.embed_tokens.weight", counted({4, 2}, 1).to(at::kBFloat16)},
                                   {"lm_head.weight", counted({4, 2}, 100).to(at::kHalf)}});
  const auto bridge = AutoBridge::from_hf_pretrained(path, Head::value);
  CHECK((bridge.export_dtype("score.weight") == at::kBFloat16));
  CHECK((bridge.export_dtype("model.norm.weight") == at::kFloat));
  Parameters params(bridge.config());
  bridge.load_weights(params.refs);
  bridge.save_hf_pretrained(folder / "out", params.refs);
  CHECK((HfWeights(folder / "out").dtype("score.weight") == at::kBFloat16));
}

TEST_CASE("a language model's folder with a value head: it is loaded, with its bias if it has one") {
  TemporaryFolder folder;
  const Tensor head = counted({1, 2}, 7), bias = counted({1}, 3);
  for (const bool with_bias : {false, true}) {
    CAPTURE(with_bias);
    const auto bridge = AutoBridge::from_hf_pretrained(
        tiny_language_model(folder, {{"score.weight", head}, {"score.bias", with_bias ? bias : Tensor()}}),
        Head::value);
    CHECK(bridge.config().add_value_head_bias == with_bias);
    CHECK(bridge.to_megatron_provider(true).params_to_initialize().empty());
    Parameters params(bridge.config());
    bridge.load_weights(params.refs);
    CHECK(same_bits(params["output_layer.weight"], head));
    if (with_bias) CHECK(same_bits(params["output_layer.bias"], bias));
    bridge.save_hf_pretrained(folder / "out", params.refs);
    const HfWeights out(folder / "out");
    CHECK(same_bits(out.tensor("score.weight"), head));
    CHECK(out.has("score.bias") == with_bias);
  }
}

TEST_CASE("critics whose weights do not fit: the error names the tensor, and nothing is loaded") {
  TemporaryFolder folder;
  const auto message = [&](const fs::path& path) {
    const auto bridge = AutoBridge::from_hf_pretrained(path, Head::value);
    Parameters params(bridge.config());
    const auto found = error_of([&] { bridge.load_weights(params.refs); });
    if (found != "(no error)") {
      CHECK(contains(found, path.string()));
      for (const Tensor& value : params.values)
        CHECK(value.equal(zeros(value.sizes(), at::kFloat).fill_(-99)));
    }
    return found;
  };
  const auto critic = [&](const Tensors& changes) { return message(tiny_language_model(folder, changes)); };
  CHECK(critic({}) == "(no error)");
  CHECK(critic({{"lm_head.weight", Tensor()}}) == "(no error)");
  CHECK(contains(critic({{"lm_head.weight", counted({3, 2}, 0)}}),
                 "\"lm_head.weight\" has shape [3, 2], expected [4, 2]"));
  CHECK(contains(critic({{"score.weight", counted({2, 2}, 0)}}),
                 "\"score.weight\" has shape [2, 2], expected [1, 2]"));
  CHECK(contains(critic({{"score.weight", counted({1, 2}, 0)}, {"score.bias", counted({2}, 0)}}),
                 "\"score.bias\" has shape [2], expected [1]"));
  CHECK(contains(critic({{"score.bias", counted({1}, 0)}}), "\"score.weight\" is missing"));
  CHECK(contains(critic({{"model.norm.weight", Tensor()}}), "\"model.norm.weight\" is missing"));
  CHECK(contains(critic({{"extra", counted({1}, 0)}}), "\"extra\" is not part of this"));

  const auto value_model = [&](const auto& edit) { return message(edited(folder, "qwen3_value", edit)); };
  CHECK(value_model([](Tensors&) {}) == "(no error)");
  CHECK(value_model([](Tensors& t) { t.erase("score.bias"); }) == "(no error)");
  CHECK(contains(value_model([](Tensors& t) { t.erase("score.weight"); }), "\"score.weight\" is missing"));
  CHECK(contains(value_model([](Tensors& t) {
                   t.erase("score.weight");
                   t.erase("score.bias");
                 }),
                 "\"score.weight\" is missing from the weights of this Qwen3ForTokenClassification"));
  CHECK(contains(value_model([](Tensors& t) {
                   t["score.weight"] = counted({2, 48}, 0);
                 }),
                 "\"score.weight\" has shape [2, 48], expected [1, 48]"));
  CHECK(contains(value_model([](Tensors& t) {
                   t["lm_head.weight"] = counted({320, 48}, 0);
                 }),
                 "\"lm_head.weight\" is not part of this Qwen3ForTokenClassification"));

  // A language model's folder that holds a value head is no language model.
  const auto language_model = AutoBridge::from_hf_pretrained(
      tiny_language_model(folder, {{"lm_head.weight", Tensor()}, {"score.weight", counted({1, 2}, 0)}}));
  Parameters params(language_model.config());
  CHECK(contains(error_of([&] { language_model.load_weights(params.refs); }),
                 "\"score.weight\" is not part of this Qwen3ForCausalLM"));
}

TEST_CASE("ForSequenceClassification and token_classification_bias false have no bias") {
  TemporaryFolder folder;
  const fs::path path = folder / "edited";
  const auto with_config = [&](const std::string& from, const std::string& to) {
    edited(folder, "qwen3_value", [](Tensors&) {});
    std::string text = read_file(path / "config.json");
    text.replace(text.find(from), from.size(), to);
    write_file(path / "config.json", text);
  };
  for (const auto& [from, to] : {std::pair("ForTokenClassification", "ForSequenceClassification"),
                                 std::pair("\"use_cache\": true", "\"token_classification_bias\": false")}) {
    CAPTURE(to);
    with_config(from, to);
    const auto bridge = AutoBridge::from_hf_pretrained(path, Head::value);
    CHECK_FALSE(bridge.config().add_value_head_bias);
    Parameters params(bridge.config());
    CHECK(
        contains(error_of([&] { bridge.load_weights(params.refs); }), "\"score.bias\" is not part of this"));
  }
  with_config("ForTokenClassification", "ForSequenceClassification");
  const HfWeights source(kData / "qwen3_value");
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : source.names())
    if (name != "score.bias") tensors.emplace_back(name, source.tensor(name));
  checkpoint::write_safetensors(path / "model.safetensors", tensors);
  const auto bridge = AutoBridge::from_hf_pretrained(path, Head::value);
  CHECK(bridge.config().architecture == "Qwen3ForSequenceClassification");
  Parameters params(bridge.config());
  bridge.load_weights(params.refs);
  bridge.save_hf_pretrained(folder / "out", params.refs);
  check_same_weights(HfWeights(path), HfWeights(folder / "out"));
  CHECK(read_file(folder / "out" / "config.json") == read_file(path / "config.json"));
}

TEST_CASE("a value model has one label, said as transformers reads it") {
  for (const std::string family : {"Llama", "Mistral", "Qwen2", "Qwen3"}) {
    for (const std::string kind : {"ForTokenClassification", "ForSequenceClassification"}) {
      const std::string name = family + kind;
      CAPTURE(name);
      CHECK(refused(name, kOneLabel) == "(no error)");
      CHECK(refused(name, R"(, "id2label": {"0": "LABEL_0"})") == "(no error)");
      CHECK(refused(name, R"(, "num_labels": 1)") == "(no error)");
      CHECK(refused(name, R"(, "num_labels": 1, "id2label": null)") == "(no error)");
      CHECK(contains(refused(name, kOneLabel, Head::language_model),
                     "architecture " + name + " is a value model, no language model"));
      const std::string missing =
          "\"id2label\" is missing, and transformers then gives this " + name + " 2 labels";
      CHECK(contains(refused(name, ""), missing));
      CHECK(contains(refused(name, R"(, "label2id": {"LABEL_0": 0})"), missing));
      CHECK(contains(refused(name, R"(, "num_labels": 2)"),
                     "this " + name + " has 2 labels, but a value model has 1"));
      CHECK(contains(refused(name, R"(, "num_labels": 0)"), "has 0 labels"));
      CHECK(contains(refused(name, R"(, "id2label": {})"), "has 0 labels"));
      CHECK(contains(refused(name, R"(, "id2label": {"0": "no", "1": "yes", "2": "?"})"), "has 3 labels"));
      CHECK(contains(refused(name, R"(, "id2label": {"0": "LABEL_0"}, "num_labels": 2)"),
                     "\"id2label\" says 1 labels, but \"num_labels\" 2"));
      CHECK(contains(refused(name, R"(, "id2label": {"0": "LABEL_0"}, "label2id": {"a": 0, "b": 1})"),
                     "\"id2label\" says 1 labels, but \"label2id\" 2"));
      CHECK(contains(refused(name, R"(, "id2label": ["LABEL_0"])"),
                     "\"id2label\" is [\"LABEL_0\"], expected a JSON object"));
      CHECK(contains(refused(name, R"(, "num_labels": "1")"),
                     "\"num_labels\" is \"1\", expected a whole number"));
    }
  }
  CHECK(contains(refused("Qwen3ForQuestionAnswering", kOneLabel), "is not supported"));
  CHECK(
      contains(refused("Qwen3ForTokenClassification", std::string(kOneLabel) + R"(, "model_type": "qwen2")"),
               "goes with \"qwen3\""));
  // What an older transformers wrote of labels says nothing about a language model.
  CHECK(refused("LlamaForCausalLM", R"(, "id2label": {"0": "a", "1": "b"})") == "(no error)");
}

TEST_CASE("config alone: a critic has no bias, and everything is to be initialised") {
  for (const char* name : {"qwen3", "qwen3_value"}) {
    CAPTURE(name);
    const auto bridge = AutoBridge::from_config(kData / name, Head::value);
    CHECK(bridge.config().value_head);
    CHECK_FALSE(bridge.config().add_value_head_bias);
    const auto provider = bridge.to_megatron_provider(false);
    Names names;
    for (const auto& param : parameters(bridge.config())) names.push_back(param.name);
    CHECK(names.back() == "output_layer.weight");
    CHECK(provider.params_to_initialize() == names);
    Parameters params(provider.config());
    provider.load_weights(params.refs);
    for (const Tensor& value : params.values) CHECK(value.equal(zeros(value.sizes(), at::kFloat).fill_(-99)));
    CHECK(contains(error_of([&] { bridge.to_megatron_provider(true); }), "has no weights"));
    CHECK((bridge.export_dtype("score.weight") == at::kFloat));
  }
  // Weights are there but not wanted.
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen3");
  CHECK(bridge.to_megatron_provider(false).params_to_initialize().size() ==
        parameters(bridge.config()).size());
  CHECK(bridge.to_megatron_provider().params_to_initialize().empty());
}

TEST_CASE("a TransformerConfig's value head is not tied, and only it has a bias") {
  auto config = read_hf_config(kData / "qwen3").config;
  config.share_embeddings_and_output_weights = false;
  config.value_head = true;
  config.add_value_head_bias = true;
  CHECK(error_of([&] { validate(config); }) == "(no error)");
  config.share_embeddings_and_output_weights = true;
  CHECK(contains(error_of([&] { validate(config); }), "cannot be tied"));
  config.value_head = false;
  CHECK(contains(error_of([&] { validate(config); }), "add_value_head_bias"));
}

}  // namespace
}  // namespace mgfl::bridge
