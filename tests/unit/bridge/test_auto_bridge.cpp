// The table of tensors in both directions: real models' weights in and out bit for bit, hand-made ones, and
// mismatches.
#include "policies/bridge/auto_bridge.hpp"

#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/bridge/model_folder.hpp"

namespace mgfl::bridge {
namespace {

namespace fs = std::filesystem;
using model::TransformerConfig;
using test::check_same_weights;
using test::contains;
using test::edited;
using test::error_of;
using test::Parameters;
using test::same_bits;
using test::TemporaryFolder;

const fs::path kData = MGFL_TEST_DATA;

Tensor vector_of(std::vector<double> values) {
  Tensor tensor = empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(double));
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  const Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

TEST_CASE("each model's weights come out as they went in") {
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3"}) {
    CAPTURE(name);
    TemporaryFolder folder;
    const auto bridge = AutoBridge::from_hf_pretrained(kData / name);
    Parameters params(bridge.config());
    bridge.load_weights(params.refs);
    bridge.save_hf_pretrained(folder / "out", params.refs, std::nullopt, 200'000);
    const HfWeights source(kData / name), exported(folder / "out");
    check_same_weights(source, exported);
    CHECK(fs::exists(folder / "out" / "model.safetensors.index.json"));
    const auto again = AutoBridge::from_hf_pretrained(folder / "out");
    CHECK((again.config() == bridge.config()));
    CHECK((again.hf_config().dtype == at::kFloat));
    // In double and back: what a narrower file holds survives a wider model.
    Parameters wide(bridge.config(), at::kDouble);
    again.load_weights(wide.refs);
    again.save_hf_pretrained(folder / "out", wide.refs);
    CHECK_FALSE(fs::exists(folder / "out" / "model.safetensors.index.json"));
    check_same_weights(source, HfWeights(folder / "out"));
  }
}

TEST_CASE("where each tensor goes: rows of the fused parameters against the file's own") {
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen2");
  const TransformerConfig& config = bridge.config();
  Parameters params(config);
  bridge.load_weights(params.refs);
  const HfWeights source(kData / "qwen2");
  const std::string hf = "model.layers.2.", ours = "decoder.layers.2.";
  for (const std::string end : {".weight", ".bias"}) {
    const Tensor fused = params[ours + "self_attention.linear_qkv" + end];
    const Tensor q = source.tensor(hf + "self_attn.q_proj" + end),
                 k = source.tensor(hf + "self_attn.k_proj" + end),
                 v = source.tensor(hf + "self_attn.v_proj" + end);
    const std::int64_t d = config.kv_channels;  // 4 heads on 2 groups: q0 q1 k0 v0 q2 q3 k1 v1
    for (std::int64_t group = 0; group < 2; ++group) {
      CHECK(fused.narrow(0, 4 * d * group, 2 * d).equal(q.narrow(0, 2 * d * group, 2 * d)));
      CHECK(fused.narrow(0, 4 * d * group + 2 * d, d).equal(k.narrow(0, d * group, d)));
      CHECK(fused.narrow(0, 4 * d * group + 3 * d, d).equal(v.narrow(0, d * group, d)));
    }
  }
  const Tensor fc1 = params[ours + "mlp.linear_fc1.weight"];
  CHECK(fc1.narrow(0, 0, 56).equal(source.tensor(hf + "mlp.gate_proj.weight")));
  CHECK(fc1.narrow(0, 56, 56).equal(source.tensor(hf + "mlp.up_proj.weight")));
  CHECK(
      params[ours + "pre_mlp_layernorm.weight"].equal(source.tensor(hf + "post_attention_layernorm.weight")));
  CHECK(params[ours + "input_layernorm.weight"].equal(source.tensor(hf + "input_layernorm.weight")));
  CHECK(params["decoder.final_layernorm.weight"].equal(source.tensor("model.norm.weight")));
  CHECK(params["embedding.word_embeddings.weight"].equal(source.tensor("model.embed_tokens.weight")));

  const auto qwen3 = AutoBridge::from_hf_pretrained(kData / "qwen3");
  Parameters others(qwen3.config());
  qwen3.load_weights(others.refs);
  const HfWeights file(kData / "qwen3");
  CHECK(
      others[ours + "self_attention.q_layernorm.weight"].equal(file.tensor(hf + "self_attn.q_norm.weight")));
  CHECK(
      others[ours + "self_attention.k_layernorm.weight"].equal(file.tensor(hf + "self_attn.k_norm.weight")));
}

TEST_CASE("gradients go by the same table: their names and shapes are those that transformers gives") {
  const HfWeights expected(kData / "llama" / "expected.safetensors");
  std::set<std::string> names;
  for (const std::string& name : expected.names())
    if (name.substr(0, 5) == "grad.") names.insert(name.substr(5));
  const auto config = read_hf_config(kData / "llama").config;
  for (const auto& [name, shape] : hf_parameters(config)) {
    CHECK(names.erase(name) == 1);
    CHECK(expected.shape("grad." + name) == shape);
  }
  CHECK(names.empty());
}

TransformerConfig tiny() {
  TransformerConfig config;
  config.architecture = "Qwen2ForCausalLM";
  config.num_layers = 1;
  config.hidden_size = 1;
  config.ffn_hidden_size = 2;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.kv_channels = 1;
  config.vocab_size = 5;
  config.add_qkv_bias = true;
  config.share_embeddings_and_output_weights = true;
  config.window_size = {0};
  return config;
}

TEST_CASE("F1: fused query, key and value rows, weights and biases") {
  const TransformerConfig config = tiny();
  ParamDesc desc;
  desc.name = "decoder.layers.0.self_attention.linear_qkv.weight";
  const Tensor fused = vector_of({1, 2, 5, 7, 3, 4, 6, 8}).view({8, 1});
  const auto parts = hf_tensors(config, desc, fused);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].name == "model.layers.0.self_attn.q_proj.weight");
  CHECK(parts[1].name == "model.layers.0.self_attn.k_proj.weight");
  CHECK(parts[2].name == "model.layers.0.self_attn.v_proj.weight");
  CHECK(parts[0].shape == std::vector<std::int64_t>{4, 1});
  CHECK(parts[1].shape == std::vector<std::int64_t>{2, 1});
  CHECK(values_of(parts[0].view) == std::vector<double>{1, 2, 3, 4});
  CHECK(values_of(parts[1].view) == std::vector<double>{5, 6});
  CHECK(values_of(parts[2].view) == std::vector<double>{7, 8});
  parts[1].view.fill_(0);  // a view: writing into it reaches the fused tensor
  CHECK(values_of(fused) == std::vector<double>{1, 2, 0, 7, 3, 4, 0, 8});

  desc.name = "decoder.layers.0.self_attention.linear_qkv.bias";
  const auto biases = hf_tensors(config, desc, vector_of({.1, .2, .5, .7, .3, .4, .6, .8}));
  REQUIRE(biases.size() == 3);
  CHECK(biases[2].name == "model.layers.0.self_attn.v_proj.bias");
  CHECK(biases[2].shape == std::vector<std::int64_t>{2});
  CHECK(values_of(biases[0].view) == std::vector<double>{.1, .2, .3, .4});
  CHECK(values_of(biases[1].view) == std::vector<double>{.5, .6});
  CHECK(values_of(biases[2].view) == std::vector<double>{.7, .8});

  desc.name = "decoder.layers.0.mlp.linear_fc1.weight";
  const auto halves = hf_tensors(config, desc, vector_of({1, 2, 3, 4}).view({4, 1}));
  CHECK(values_of(halves[0].view) == std::vector<double>{1, 2});
  CHECK(values_of(halves[1].view) == std::vector<double>{3, 4});

  // Names that are none of this model's, and shapes that are not the config's.
  for (const char* name :
       {"decoder.layers.0.self_attention.linear_proj.bias", "output_layer.weight", "decoder.layers..x",
        "decoder.layers.0x.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.bias"}) {
    desc.name = name;
    CHECK(contains(error_of([&] { hf_tensors(config, desc, vector_of({1})); }), name));
  }
  desc.name = "decoder.final_layernorm.weight";
  CHECK(contains(error_of([&] { hf_tensors(config, desc, vector_of({1, 2})); }), "[2], expected [1]"));
}

TEST_CASE(
    "F3 and biases: head_dim that is not hidden/heads, Llama's and Qwen3's biases on o_proj and the MLP") {
  const auto text =
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 6, "intermediate_size": 10, "vocab_size": 7,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "attention_bias": true,
    "mlp_bias": true, "torch_dtype": "bfloat16"})";
  TemporaryFolder folder;
  const auto bridge = AutoBridge::from_config(parse_hf_config(text, folder / "config.json"));
  CHECK_FALSE(bridge.has_weights());
  Parameters params(bridge.config());
  CHECK(contains(error_of([&] { bridge.load_weights(params.refs); }), "no weights"));
  double next = 0;
  for (Tensor& value : params.values) value.fill_(next++);
  bridge.save_hf_pretrained(folder / "out", params.refs);
  const HfWeights out(folder / "out");
  using Shape = std::vector<std::int64_t>;
  const std::string layer = "model.layers.1.";
  CHECK(out.shape(layer + "self_attn.q_proj.weight") == Shape{16, 6});
  CHECK(out.shape(layer + "self_attn.k_proj.weight") == Shape{8, 6});
  CHECK(out.shape(layer + "self_attn.v_proj.weight") == Shape{8, 6});
  CHECK(out.shape(layer + "self_attn.o_proj.weight") == Shape{6, 16});
  CHECK(out.shape(layer + "self_attn.q_proj.bias") == Shape{16});
  CHECK(out.shape(layer + "self_attn.o_proj.bias") == Shape{6});
  CHECK(out.shape(layer + "mlp.gate_proj.bias") == Shape{10});
  CHECK(out.shape(layer + "mlp.down_proj.bias") == Shape{6});
  CHECK(out.shape("lm_head.weight") == Shape{7, 6});
  for (const std::string& name : out.names()) CHECK((out.dtype(name) == at::kBFloat16));
  const auto again = AutoBridge::from_hf_pretrained(folder / "out");
  CHECK((again.config() == bridge.config()));
  Parameters back(again.config());
  again.load_weights(back.refs);
  for (std::size_t i = 0; i < params.values.size(); ++i) CHECK(back.values[i].equal(params.values[i]));
}

TEST_CASE("F5: padded rows of the vocabulary stay here") {
  TransformerConfig config = tiny();
  TemporaryFolder folder;
  Parameters params(config);
  for (Tensor& value : params.values) value.fill_(0.5);
  const Tensor padded = vector_of({1, 2, 3, 4, 5, 99, 99, 99}).view({8, 1}).to(at::kFloat);
  params["embedding.word_embeddings.weight"] = padded.clone();
  HfConfig hf =
      parse_hf_config(R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 8, "intermediate_size": 2,
    "vocab_size": 5, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2})",
                      folder / "config.json");
  hf.config = config;
  const auto bridge = AutoBridge::from_config(hf);
  bridge.save_hf_pretrained(folder / "out", params.refs);
  const HfWeights out(folder / "out");
  CHECK(out.shape("model.embed_tokens.weight") == std::vector<std::int64_t>{5, 1});
  CHECK(values_of(out.tensor("model.embed_tokens.weight")) == std::vector<double>{1, 2, 3, 4, 5});
  load_weights(out, config, params.refs);
  CHECK(values_of(params["embedding.word_embeddings.weight"]) == std::vector<double>{1, 2, 3, 4, 5, 0, 0, 0});
}

TEST_CASE(
    "weights that do not fit the config: the error names file, tensor and both shapes, and nothing is "
    "loaded") {
  TemporaryFolder folder;
  using Tensors = std::map<std::string, Tensor>;
  const auto message = [&](const char* model, const auto& edit) {
    const auto path = edited(folder, model, edit);
    const auto bridge = AutoBridge::from_hf_pretrained(path);
    Parameters params(bridge.config());
    const auto found = error_of([&] { bridge.load_weights(params.refs); });
    if (found != "(no error)") {
      CHECK(contains(found, path.string()));
      for (const Tensor& value : params.values)
        CHECK(value.equal(zeros(value.sizes(), at::kFloat).fill_(-99)));
    }
    return found;
  };
  const std::string q_bias = "model.layers.0.self_attn.q_proj.bias";
  CHECK(message("llama", [](Tensors&) {}) == "(no error)");
  auto found = message("llama", [&](Tensors& t) { t[q_bias] = zeros({48}, at::kFloat); });
  CHECK(contains(found, q_bias));
  CHECK(contains(found, "model.safetensors"));
  CHECK(
      contains(message("qwen2", [&](Tensors& t) { t.erase(q_bias); }), concat('"', q_bias, "\" is missing")));
  CHECK(contains(message("llama", [](Tensors& t) { t.erase("lm_head.weight"); }),
                 "\"lm_head.weight\" is missing"));
  found = message("llama", [](Tensors& t) { t["model.norm.weight"] = zeros({47}, at::kFloat); });
  CHECK(contains(found, "\"model.norm.weight\" has shape [47], expected [48]"));
  CHECK(contains(message("llama", [](Tensors& t) { t["model.norm.weight"] = zeros({48}, at::kLong); }),
                 "dtype I64"));
  CHECK(contains(message("llama",
                         [](Tensors& t) {
                           t["model.layers.4.mlp.up_proj.weight"] = zeros({96, 48}, at::kFloat);
                         }),
                 "model.layers.4.mlp.up_proj.weight"));
  CHECK(contains(message("llama", [](Tensors& t) { t["extra"] = zeros({1}, at::kFloat); }), "\"extra\""));
  CHECK(message("llama", [](Tensors& t) {
          t["model.layers.0.self_attn.rotary_emb.inv_freq"] = zeros({4}, at::kFloat);
        }) == "(no error)");
  // A tied model may bring its head along, if it is the embedding.
  CHECK(message("qwen2", [](Tensors& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"]; }) ==
        "(no error)");
  found = message("qwen2", [](Tensors& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"].add(1); });
  CHECK(contains(found, "lm_head.weight"));
  CHECK(contains(found, "tie_word_embeddings"));
  CHECK(contains(message("qwen2", [](Tensors& t) { t["lm_head.weight"] = zeros({3}, at::kFloat); }),
                 "lm_head.weight"));
}

TEST_CASE(
    "each tensor keeps the dtype it had, a tied head is written where it was, and small files come along") {
  TemporaryFolder folder;
  const auto path = edited(folder, "qwen2", [](std::map<std::string, Tensor>& tensors) {
    for (auto& [name, tensor] : tensors)
      tensor = tensor.to(contains(name, "norm")  ? at::kFloat
                         : contains(name, "mlp") ? at::kHalf
                                                 : at::kBFloat16);
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  });
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
        "vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja", "other.txt"})
    test::write_file(path / name, name);
  const auto bridge = AutoBridge::from_hf_pretrained(path);
  Parameters params(bridge.config());
  bridge.load_weights(params.refs);
  bridge.save_hf_pretrained(folder / "out", params.refs);
  check_same_weights(HfWeights(path), HfWeights(folder / "out"));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "out"))
    names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json",
                                       "tokenizer_config.json", "generation_config.json",
                                       "special_tokens_map.json", "vocab.json", "merges.txt",
                                       "added_tokens.json", "chat_template.jinja"});
  CHECK(test::read_file(folder / "out" / "merges.txt") == "merges.txt");
  // Over its own source: the source stays readable while it is replaced.
  bridge.save_hf_pretrained(path, params.refs, std::nullopt, 50'000);
  check_same_weights(HfWeights(path), HfWeights(folder / "out"));
  CHECK(test::read_file(path / "other.txt") == "other.txt");

  std::vector<ParamRef> some(params.refs.begin(), params.refs.end() - 1);
  CHECK(contains(error_of([&] { bridge.save_hf_pretrained(folder / "out", some); }), "model.norm.weight"));
  std::vector<ParamRef> twice = params.refs;
  twice.push_back(twice.front());
  CHECK(contains(error_of([&] { bridge.save_hf_pretrained(folder / "out", twice); }), "given twice"));
}

TEST_CASE("an export in a dtype of choice: every tensor has it, and config.json says so") {
  TemporaryFolder folder;
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen3");
  Parameters params(bridge.config());
  bridge.load_weights(params.refs);
  bridge.save_hf_pretrained(folder / "out", params.refs, at::kBFloat16);
  const auto again = AutoBridge::from_hf_pretrained(folder / "out");
  CHECK((again.hf_config().dtype == at::kBFloat16));
  const HfWeights source(kData / "qwen3"), out(folder / "out");
  for (const std::string& name : source.names())
    CHECK(same_bits(out.tensor(name), source.tensor(name).to(at::kBFloat16)));
}

TEST_CASE("a stage loads its part and checks the whole file") {
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "llama");
  Parameters params(bridge.config());
  const std::vector<ParamRef> stage(params.refs.begin(), params.refs.begin() + 5);
  bridge.load_weights(stage);
  CHECK(params["embedding.word_embeddings.weight"].equal(
      HfWeights(kData / "llama").tensor("model.embed_tokens.weight")));
  CHECK(params["output_layer.weight"].const_data_ptr<float>()[0] == -99);
}

}  // namespace
}  // namespace mgfl::bridge
