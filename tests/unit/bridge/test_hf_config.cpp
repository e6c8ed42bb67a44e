// config.json in both spellings, its defaults, and every way of getting it wrong.
#include "policies/bridge/hf_config.hpp"

#include <cmath>
#include <map>
#include <vector>

#include "policies/bridge/json.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"

namespace mgfl::bridge {
namespace {

using model::RopeType;
using model::TransformerConfig;
using test::contains;
using test::error_of;

const std::filesystem::path kData = MGFL_TEST_DATA;

using Keys = std::map<std::string, std::string>;  // JSON texts by key; an empty text takes the key away

std::string config_text(const std::string& architecture, const Keys& changes = {}) {
  Keys keys{{"architectures", "[\"" + architecture + "\"]"},
            {"hidden_size", "32"},
            {"intermediate_size", "24"},
            {"num_hidden_layers", "4"},
            {"num_attention_heads", "4"},
            {"vocab_size", "64"}};
  for (const auto& [key, value] : changes) keys[key] = value;
  std::string text;
  for (const auto& [key, value] : keys)
    if (!value.empty()) text += (text.empty() ? "{\"" : ", \"") + key + "\": " + value;
  return text + "}";
}

TransformerConfig read(const std::string& architecture, const Keys& changes = {}) {
  return parse_hf_config(config_text(architecture, changes), "dir/config.json").config;
}

std::string refused(const std::string& architecture, const Keys& changes) {
  const std::string message = error_of([&] { read(architecture, changes); });
  if (message != "(no error)") CHECK(contains(message, "dir/config.json"));
  return message;
}

void check_frequencies(const TransformerConfig& config, std::vector<double> expected,
                       double tolerance = 1e-6) {
  const auto found = rotary_inverse_frequencies(config);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(found[i] / expected[i] - 1) < tolerance);
}

const std::vector<std::string> kAll{"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                    "Qwen3ForCausalLM"};

TEST_CASE("both spellings of each model give the same config") {
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const HfConfig one = read_hf_config(kData / name);
    const HfConfig other = read_hf_config(kData / name / "config_alt.json");
    CHECK((one.config == other.config));
    CHECK((one.dtype == at::kFloat));
    CHECK((other.dtype == at::kFloat));
  }
}

TEST_CASE("the models' numbers") {
  const auto llama = read_hf_config(kData / "llama").config;
  CHECK(llama.architecture == "LlamaForCausalLM");
  CHECK(llama.num_layers == 4);
  CHECK(llama.hidden_size == 48);
  CHECK(llama.ffn_hidden_size == 96);
  CHECK(llama.num_attention_heads == 6);
  CHECK(llama.num_query_groups == 2);
  CHECK(llama.kv_channels == 8);
  CHECK(llama.vocab_size == 320);
  CHECK(llama.max_position_embeddings == 256);
  CHECK(llama.layernorm_epsilon == 1e-5);
  CHECK((llama.rope_scaling.type == RopeType::llama3));
  CHECK(llama.rope_scaling.factor == 8);
  CHECK(llama.rope_scaling.original_max_position_embeddings == 32);
  CHECK_FALSE(llama.share_embeddings_and_output_weights);
  CHECK(llama.window_size == std::vector<std::int64_t>{0, 0, 0, 0});
  CHECK(llama.eos_token_ids == std::vector<std::int64_t>{2});
  CHECK(llama.pad_token_id == 0);

  const auto mistral = read_hf_config(kData / "mistral").config;
  CHECK(mistral.kv_channels == 8);  // one of the two files leaves head_dim out
  CHECK(mistral.window_size == std::vector<std::int64_t>{9, 9, 9, 9});
  CHECK(mistral.rotary_base == 1e6);

  const auto qwen2 = read_hf_config(kData / "qwen2").config;
  CHECK(qwen2.add_qkv_bias);
  CHECK_FALSE(qwen2.add_proj_bias);
  CHECK(qwen2.share_embeddings_and_output_weights);
  CHECK(qwen2.kv_channels == 16);

  const auto qwen3 = read_hf_config(kData / "qwen3").config;
  CHECK(qwen3.qk_layernorm);
  CHECK_FALSE(qwen3.add_qkv_bias);
  CHECK(qwen3.kv_channels == 16);
  CHECK(qwen3.num_attention_heads * qwen3.kv_channels == 64);
}

TEST_CASE("H1: what each architecture's class says where config.json is silent") {
  const auto llama = read("LlamaForCausalLM");
  CHECK(llama.max_position_embeddings == 2048);
  CHECK(llama.layernorm_epsilon == 1e-6);
  CHECK(llama.init_method_std == 0.02);
  CHECK(llama.rotary_base == 10000);
  CHECK(llama.num_query_groups == 4);
  CHECK(llama.kv_channels == 8);
  CHECK(llama.eos_token_ids == std::vector<std::int64_t>{2});
  CHECK(llama.pad_token_id == -1);
  CHECK_FALSE(llama.share_embeddings_and_output_weights);
  CHECK_FALSE(llama.add_qkv_bias);
  CHECK_FALSE(llama.add_proj_bias);
  CHECK_FALSE(llama.add_mlp_bias);
  CHECK((llama.rope_scaling.type == RopeType::standard));
  CHECK_FALSE(parse_hf_config(config_text("LlamaForCausalLM"), "c").dtype.has_value());

  const auto mistral = read("MistralForCausalLM", {{"num_attention_heads", "32"}, {"hidden_size", "64"}});
  CHECK(mistral.num_query_groups == 8);
  CHECK(mistral.max_position_embeddings == 131072);
  CHECK(mistral.window_size == std::vector<std::int64_t>(4, 4096));
  CHECK(mistral.eos_token_ids == std::vector<std::int64_t>{2});

  const auto qwen2 = read("Qwen2ForCausalLM");
  CHECK(qwen2.max_position_embeddings == 32768);
  CHECK(qwen2.add_qkv_bias);
  CHECK_FALSE(qwen2.add_proj_bias);
  CHECK(qwen2.kv_channels == 8);
  CHECK(qwen2.eos_token_ids.empty());
  CHECK(qwen2.window_size == std::vector<std::int64_t>(4, 0));

  const auto qwen3 = read("Qwen3ForCausalLM");
  CHECK(qwen3.kv_channels == 128);
  CHECK(qwen3.qk_layernorm);
  CHECK(read("Qwen3ForCausalLM", {{"head_dim", "null"}}).kv_channels == 128);
  CHECK(read("Qwen3ForCausalLM", {{"attention_bias", "true"}}).add_qkv_bias);
  CHECK(read("Qwen3ForCausalLM", {{"attention_bias", "true"}}).add_proj_bias);
  CHECK(read("LlamaForCausalLM", {{"attention_bias", "true"}}).add_proj_bias);
  CHECK(read("LlamaForCausalLM", {{"mlp_bias", "true"}}).add_mlp_bias);
  // transformers' Mistral and Qwen2 have no such switch.
  CHECK_FALSE(read("MistralForCausalLM", {{"attention_bias", "true"}}).add_qkv_bias);
  CHECK_FALSE(read("Qwen2ForCausalLM", {{"mlp_bias", "true"}}).add_mlp_bias);
}

TEST_CASE("H1: null is missing, types are kept, required keys are named") {
  for (const auto& name : kAll) {
    CAPTURE(name);
    CHECK(read(name, {{"num_key_value_heads", "null"}}).num_query_groups == 4);
    CHECK(read(name).num_query_groups == 4);
    CHECK(read(name, {{"rms_norm_eps", "null"}}).layernorm_epsilon == 1e-6);
    CHECK(read(name, {{"tie_word_embeddings", "true"}}).share_embeddings_and_output_weights);
    CHECK(contains(refused(name, {{"num_key_value_heads", "0"}}), "\"num_key_value_heads\" is 0"));
    CHECK(contains(refused(name, {{"num_key_value_heads", "3"}}), "num_attention_heads 4"));
    CHECK(contains(refused(name, {{"num_key_value_heads", "-2"}}), "\"num_key_value_heads\" is -2"));
    for (const char* key :
         {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
      const std::string quoted = concat('"', key, '"');
      for (const char* missing : {"", "null"}) {
        CHECK(contains(refused(name, {{key, missing}}), quoted));
        CHECK(contains(refused(name, {{key, missing}}), "missing"));
      }
      for (const char* wrong : {"\"4\"", "true", "4.0", "[4]", "{}", "18446744073709551615"})
        CHECK(contains(refused(name, {{key, wrong}}), quoted));
      for (const char* wrong : {"0", "-1", "4611686018427387904"})
        CHECK(refused(name, {{key, wrong}}) != "(no error)");
    }
    CHECK(contains(refused(name, {{"rms_norm_eps", "\"1e-5\""}}), "\"rms_norm_eps\""));
    CHECK(contains(refused(name, {{"rms_norm_eps", "0"}}), "layernorm_epsilon"));
    CHECK(contains(refused(name, {{"tie_word_embeddings", "1"}}), "\"tie_word_embeddings\""));
    CHECK(contains(refused(name, {{"hidden_act", "\"gelu\""}}), "\"gelu\""));
    CHECK(contains(refused(name, {{"pretraining_tp", "2"}}), "\"pretraining_tp\" is 2"));
    CHECK(contains(refused(name, {{"quantization_config", "{\"quant_method\": \"fp8\"}"}}),
                   "quantization_config"));
    CHECK(contains(refused(name, {{"attention_dropout", "0.1"}}), "attention_dropout"));
    CHECK(contains(refused(name, {{"partial_rotary_factor", "0.5"}}), "partial_rotary_factor"));
    CHECK(contains(refused(name, {{"model_type", "\"gpt2\""}}), "\"gpt2\""));
    CHECK(refused(name, {{"quantization_config", "null"},
                         {"pretraining_tp", "1"},
                         {"partial_rotary_factor", "1.0"}}) == "(no error)");
    CHECK(contains(refused(name, {{"dtype", "\"int4\""}}), "int4"));
    CHECK(
        contains(refused(name, {{"dtype", "\"float16\""}, {"torch_dtype", "\"bfloat16\""}}), "torch_dtype"));
  }
  CHECK(read("LlamaForCausalLM", {{"eos_token_id", "[1, 5]"}}).eos_token_ids ==
        std::vector<std::int64_t>{1, 5});
  CHECK(read("LlamaForCausalLM", {{"eos_token_id", "null"}}).eos_token_ids.empty());
  CHECK(contains(refused("LlamaForCausalLM", {{"eos_token_id", "\"2\""}}), "eos_token_id"));
  CHECK(contains(refused("LlamaForCausalLM", {{"eos_token_id", "[2, true]"}}), "eos_token_id"));
}

TEST_CASE("an architecture that is not supported: the error lists those that are") {
  for (const std::string wrong : {"[\"GPT2LMHeadModel\"]", "", "null", "[]", "\"LlamaForCausalLM\"", "[3]"}) {
    const auto message = refused("LlamaForCausalLM", {{"architectures", wrong}});
    for (const auto& name : kAll) CHECK(contains(message, name));
  }
}

TEST_CASE("F3: head_dim") {
  const auto odd =
      read("LlamaForCausalLM", {{"hidden_size", "6"}, {"num_key_value_heads", "2"}, {"head_dim", "4"}});
  CHECK(odd.kv_channels == 4);
  CHECK(read("LlamaForCausalLM", {{"hidden_size", "8"}, {"head_dim", "null"}}).kv_channels == 2);
  CHECK(contains(refused("LlamaForCausalLM", {{"hidden_size", "6"}}), "hidden_size 6"));
  CHECK(contains(refused("LlamaForCausalLM", {{"head_dim", "0"}}), "\"head_dim\" is 0"));
  CHECK(contains(refused("LlamaForCausalLM", {{"head_dim", "5"}}), "head_dim is 5"));
  CHECK(contains(refused("LlamaForCausalLM", {{"head_dim", "\"4\""}}), "\"head_dim\""));
}

TEST_CASE("G1: llama3 scaling takes its four numbers from the file") {
  const std::string base = R"("rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, )"
                           R"("original_max_position_embeddings": 8192)";
  const auto llama3 = [&](const std::string& factor) {
    return read("LlamaForCausalLM",
                {{"rope_theta", "500000"}, {"rope_scaling", "{" + base + ", \"factor\": " + factor + "}"}});
  };
  check_frequencies(llama3("8"), {1, 0.0376060309, 5.24846161e-4, 6.64786987e-6}, 1e-8);
  check_frequencies(llama3("32.0"), {1, 0.0376060309, 4.29556797e-4, 1.66196747e-6}, 1e-8);
  check_frequencies(read("LlamaForCausalLM", {{"rope_theta", "500000"}}),
                    {1, 0.0376060309, 1.41421356e-3, 5.31829590e-5}, 1e-8);
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    std::string scaling = "{\"rope_type\": \"llama3\"";
    for (const auto& [name, value] : Keys{{"factor", "8"},
                                          {"low_freq_factor", "1"},
                                          {"high_freq_factor", "4"},
                                          {"original_max_position_embeddings", "8192"}})
      if (name != key) scaling += ", \"" + name + "\": " + value;
    CHECK(contains(refused("LlamaForCausalLM", {{"rope_scaling", scaling + "}"}}), concat('"', key, '"')));
    CHECK(
        contains(refused("LlamaForCausalLM", {{"rope_scaling", scaling + ", \"" + key + "\": null}"}}), key));
    CHECK(contains(refused("LlamaForCausalLM", {{"rope_scaling", scaling + ", \"" + key + "\": \"8\"}"}}),
                   key));
    CHECK(refused("LlamaForCausalLM", {{"rope_scaling", scaling + ", \"" + key + "\": 0}"}}) != "(no error)");
  }
}

TEST_CASE("linear and yarn as transformers computes them") {
  const auto scaled = [](const std::string& parameters, const std::string& head_dim = "16") {
    return read("Qwen3ForCausalLM", {{"head_dim", head_dim},
                                     {"max_position_embeddings", "1024"},
                                     {"rope_parameters", "{" + parameters + "}"}});
  };
  check_frequencies(scaled(R"("rope_type": "linear", "factor": 4)"),
                    {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
                     0.000250000012, 7.90569466e-05});
  const std::string yarn =
      R"("rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256)";
  // Values of transformers 5.24, which computes them in fp32.
  auto config = scaled(yarn);
  check_frequencies(config, {1, 0.25693506, 0.0625, 0.0138349654, 0.00249999994, 0.000790569466,
                             0.000250000012, 7.90569466e-05});
  CHECK(config.rope_scaling.attention_factor == doctest::Approx(1.138629436111989).epsilon(1e-12));
  check_frequencies(scaled(yarn + R"(, "truncate": false)"),
                    {1, 0.253972292, 0.0553986356, 0.00963994302, 0.00249999994, 0.000790569466,
                     0.000250000012, 7.90569466e-05});
  check_frequencies(
      scaled(yarn + R"(, "beta_fast": 8, "beta_slow": 2.0)"),
      {1, 0.316227764, 0.0625, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05});
  CHECK(scaled(yarn + R"(, "attention_factor": 0.5)").rope_scaling.attention_factor == 0.5);
  CHECK(scaled(yarn + R"(, "mscale": 1.0, "mscale_all_dim": 0.5)").rope_scaling.attention_factor ==
        doctest::Approx(1.0648216253695715).epsilon(1e-12));
  CHECK(scaled(yarn + R"(, "mscale": 1.0)").rope_scaling.attention_factor ==
        doctest::Approx(1.138629436111989).epsilon(1e-12));
  CHECK(contains(error_of([&] { scaled(R"("rope_type": "yarn", "original_max_position_embeddings": 256)"); }),
                 "\"factor\""));
  CHECK(contains(error_of([&] { scaled(R"("rope_type": "yarn", "factor": 4)"); }),
                 "original_max_position_embeddings"));
}

TEST_CASE("G2: rope_parameters against rope_theta and rope_scaling") {
  const Keys tiny{{"hidden_size", "16"}};  // head_dim 4
  const auto with = [&](Keys keys) {
    keys.merge(Keys(tiny));
    return keys;
  };
  for (const auto& name : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}) {
    for (const char* theta : {"1000000", "1000000.0", "1e6"}) {
      check_frequencies(
          read(name,
               with({{"rope_parameters", concat("{\"rope_type\":\"default\",\"rope_theta\":", theta, "}")}})),
          {1, 0.001}, 1e-12);
      check_frequencies(read(name, with({{"rope_theta", theta}, {"rope_scaling", "null"}})), {1, 0.001},
                        1e-12);
      check_frequencies(read(name, with({{"rope_theta", theta}})), {1, 0.001}, 1e-12);
      check_frequencies(
          read(name, with({{"rope_theta", theta}, {"rope_parameters", "{\"rope_type\":\"default\"}"}})),
          {1, 0.001}, 1e-12);
    }
    // The old key for the type.
    check_frequencies(read(name, with({{"rope_scaling", R"({"type": "linear", "factor": 2.0})"}})),
                      {0.5, 0.005}, 1e-12);
    for (const char* type : {"foo", "dynamic", "longrope", "mrope", ""})
      for (const char* key : {"rope_scaling", "rope_parameters"})
        CHECK(
            contains(refused(name, with({{key, concat("{\"rope_type\": \"", type, "\", \"factor\": 2.0}")}})),
                     concat("rope_type \"", type, "\" is not supported")));
    CHECK(contains(
        refused(name, with({{"rope_theta", "10000"}, {"rope_parameters", R"({"rope_theta": 1000000})"}})),
        "rope_theta"));
    CHECK(contains(
        refused(name, with({{"rope_scaling", R"({"type": "linear", "rope_type": "yarn", "factor": 2})"}})),
        "\"type\""));
    CHECK(contains(refused(name, with({{"rope_scaling", R"({"type": "linear", "factor": 2})"},
                                       {"rope_parameters", R"({"rope_type": "linear", "factor": 4})"}})),
                   "differ"));
    CHECK(contains(refused(name, with({{"rope_parameters", R"({"partial_rotary_factor": 0.5})"}})),
                   "partial_rotary_factor"));
    CHECK(contains(refused(name, with({{"rope_theta", "0"}})), "rope_theta"));
    CHECK(contains(refused(name, with({{"rope_theta", "true"}})), "rope_theta"));
    CHECK(contains(refused(name, with({{"rope_parameters", "[]"}})), "rope_parameters"));
    CHECK(contains(refused(name, with({{"rope_parameters", R"({"full_attention": {"rope_theta": 1e4}})"}})),
                   "each kind"));
  }
}

TEST_CASE("G5: which layers have a window") {
  using Layers = std::vector<std::int64_t>;
  for (const auto& name : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const auto windows = [&](const Keys& keys) { return read(name, keys).window_size; };
    CHECK(windows({{"sliding_window", "3"}, {"max_window_layers", "2"}}) == Layers{0, 0, 0, 0});
    CHECK(windows({{"sliding_window", "3"}, {"max_window_layers", "2"}, {"use_sliding_window", "false"}}) ==
          Layers{0, 0, 0, 0});
    CHECK(windows({{"sliding_window", "3"}, {"max_window_layers", "2"}, {"use_sliding_window", "true"}}) ==
          Layers{0, 0, 3, 3});
    CHECK(windows({{"sliding_window", "3"}, {"use_sliding_window", "true"}}) ==
          Layers{0, 0, 0, 0});  // 28 by default
    CHECK(windows({{"sliding_window", "3"}, {"use_sliding_window", "true"}, {"max_window_layers", "0"}}) ==
          Layers{3, 3, 3, 3});
    CHECK(windows({{"sliding_window", "null"}, {"use_sliding_window", "true"}, {"max_window_layers", "0"}}) ==
          Layers{0, 0, 0, 0});
    CHECK(windows({{"use_sliding_window", "true"}, {"max_window_layers", "3"}}) == Layers{0, 0, 0, 4096});
    CHECK(windows({{"sliding_window", "0"}}) ==
          Layers{0, 0, 0, 0});  // switched off: its value is nobody's business
    // The list wins over max_window_layers.
    const std::string list =
        R"(["sliding_attention", "full_attention", "sliding_attention", "full_attention"])";
    CHECK(windows({{"sliding_window", "3"}, {"use_sliding_window", "true"}, {"layer_types", list}}) ==
          Layers{3, 0, 3, 0});
    CHECK(contains(refused(name, {{"sliding_window", "3"}, {"layer_types", list}}), "use_sliding_window"));
    CHECK(contains(refused(name, {{"layer_types", R"(["full_attention"])"}}), "layer_types"));
    CHECK(contains(
        refused(name, {{"layer_types", R"(["full_attention","full_attention","full_attention","x"])"}}),
        "\"x\""));
    CHECK(
        contains(refused(name, {{"use_sliding_window", "true"}, {"sliding_window", "0"}}), "sliding_window"));
    CHECK(contains(refused(name, {{"use_sliding_window", "1"}}), "use_sliding_window"));
  }
  CHECK(read("MistralForCausalLM", {{"sliding_window", "9"}}).window_size == Layers{9, 9, 9, 9});
  CHECK(read("MistralForCausalLM", {{"sliding_window", "null"}}).window_size == Layers{0, 0, 0, 0});
  CHECK(read("MistralForCausalLM").window_size == Layers{4096, 4096, 4096, 4096});
  CHECK(contains(refused("MistralForCausalLM", {{"sliding_window", "0"}}), "sliding_window"));
  CHECK(read("LlamaForCausalLM", {{"sliding_window", "9"}}).window_size == Layers{0, 0, 0, 0});
}

TEST_CASE("broken JSON names the file and the place") {
  test::TemporaryFolder folder;
  const auto message = [&](std::string_view text) {
    test::write_file(folder / "config.json", text);
    const auto found = error_of([&] { read_hf_config(folder.path()); });
    CHECK(contains(found, (folder / "config.json").string()));
    return found;
  };
  CHECK(contains(message("{\"a\": 1,\n \"b\": 2,\n}"), "line 3, column 1"));
  CHECK(contains(message("{\"a\": 1"), "not valid JSON"));
  CHECK(contains(message(""), "not valid JSON"));
  CHECK(contains(message("{} {}"), "not valid JSON"));
  CHECK(contains(message("{\"a\": NaN}"), "not valid JSON"));
  CHECK(contains(message("{\"a\": 1e999}"), "not valid JSON"));
  CHECK(contains(message("// no\n{}"), "not valid JSON"));
  CHECK(contains(message("[]"), "no JSON object"));
  CHECK(contains(message("{\"hidden_size\": 1, \"hidden_size\": 2}"), "duplicate key \"hidden_size\""));
  CHECK(contains(message("{\"a\": [{\"x\": {\"y\": 1, \"y\": 1}}]}"), "duplicate key \"y\""));
  CHECK(contains(error_of([&] { read_hf_config(folder / "none"); }), "no such file"));
  // Equal keys in different objects are no duplicates.
  CHECK(contains(message("{\"a\": {\"x\": 1}, \"b\": {\"x\": 1}}"), "architectures"));
}

TEST_CASE("export keeps the source's text, and puts head_dim and dtype right") {
  const auto llama = read_hf_config(kData / "llama");
  CHECK(export_hf_config(llama, at::kFloat) == test::read_file(kData / "llama" / "config.json"));
  const auto again = [](const std::string& text) { return parse_hf_config(text, "again"); };

  const auto mistral = read_hf_config(kData / "mistral");  // no head_dim, v4
  const auto text = export_hf_config(mistral, at::kBFloat16);
  CHECK(contains(text, "\"head_dim\": 8"));
  CHECK(contains(text, "\"torch_dtype\": \"bfloat16\""));
  CHECK_FALSE(contains(text, "\"dtype\""));
  CHECK((again(text).config == mistral.config));
  CHECK((again(text).dtype == at::kBFloat16));

  const auto qwen3 = export_hf_config(read_hf_config(kData / "qwen3"), at::kHalf);
  CHECK(contains(qwen3, "\"dtype\": \"float16\""));
  CHECK_FALSE(contains(qwen3, "torch_dtype"));
  CHECK(again(qwen3).config.rotary_base == 1e6);

  const auto odd =
      parse_hf_config(config_text("LlamaForCausalLM",
                                  {{"hidden_size", "8"}, {"head_dim", "null"}, {"rms_norm_eps", "1e-05"}}),
                      "odd");
  const auto exported = export_hf_config(odd, at::kFloat);
  CHECK(contains(exported, "\"head_dim\": 2"));
  CHECK(contains(exported, "\"dtype\": \"float32\""));
  CHECK((again(exported).config == odd.config));
}

}  // namespace
}  // namespace mgfl::bridge
