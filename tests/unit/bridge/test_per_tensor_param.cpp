// The lazy range of Hugging Face tensors against saved folders and files.
#include "policies/bridge/per_tensor_param.hpp"

#include <algorithm>
#include <concepts>
#include <map>
#include <ranges>
#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/bridge/model_folder.hpp"

namespace mgfl::bridge {
namespace {

namespace fs = std::filesystem;
using model::Head;
using test::contains;
using test::edited;
using test::error_of;
using test::Parameters;
using test::same_bits;
using test::TemporaryFolder;

const fs::path kData = MGFL_TEST_DATA;

static_assert(std::ranges::input_range<PerTensorParam>);
static_assert(std::ranges::sized_range<PerTensorParam>);
static_assert(std::same_as<std::ranges::range_value_t<PerTensorParam>, NamedHfTensor>);

TEST_CASE("the range yields the source's tensors: names, order, shapes, bits") {
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "qwen3_value"}) {
    CAPTURE(name);
    const bool value = contains(name, "value");
    const auto bridge =
        AutoBridge::from_hf_pretrained(kData / name, value ? Head::value : Head::language_model);
    Parameters params(bridge.config());
    bridge.load_weights(params.refs);
    const HfWeights source(kData / name);
    PerTensorParam range = bridge.export_hf_weights(params.refs);
    CHECK(range.size() == source.names().size());
    for (int walk = 0; walk < 2; ++walk) {
      const auto specs = range.specs();
      REQUIRE(specs.size() == range.size());
      std::size_t i = 0;
      for (const auto& [hf_name, tensor] : range) {
        CAPTURE(hf_name);
        REQUIRE(i < source.names().size());
        CHECK(specs[i].name == hf_name);
        CHECK(specs[i].shape == source.shape(hf_name));
        CHECK((specs[i].dtype == tensor.scalar_type()));
        CHECK(hf_name == source.names()[i++]);
        CHECK(tensor.is_contiguous());
        CHECK(same_bits(tensor, source.tensor(hf_name)));
      }
      CHECK(i == source.names().size());
    }
    // mbridge's name; and composition with the standard library's views.
    PerTensorParam other = bridge.export_weights(params.refs);
    CHECK(std::ranges::equal(range | std::views::transform(&NamedHfTensor::name),
                             other | std::views::transform(&NamedHfTensor::name)));
  }
}

TEST_CASE("the range's dtype: the parameters' own, or the one asked for; saved folders hold the same bits") {
  TemporaryFolder folder;
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen2");
  Parameters params(bridge.config(), at::kDouble);
  bridge.load_weights(params.refs);
  const HfWeights source(kData / "qwen2");
  for (const auto& [name, tensor] : bridge.export_hf_weights(params.refs))
    CHECK(same_bits(tensor, source.tensor(name).to(at::kDouble)));
  for (const auto& spec : bridge.export_hf_weights(params.refs).specs()) CHECK((spec.dtype == at::kDouble));
  for (const auto& spec : bridge.export_hf_weights(params.refs, at::kBFloat16).specs())
    CHECK((spec.dtype == at::kBFloat16));
  bridge.save_hf_pretrained(folder / "out", params.refs, at::kBFloat16);
  const HfWeights saved(folder / "out");
  for (const auto& [name, tensor] : bridge.export_hf_weights(params.refs, at::kBFloat16)) {
    CAPTURE(name);
    CHECK(tensor.is_contiguous());
    CHECK(same_bits(tensor, source.tensor(name).to(at::kBFloat16)));
    CHECK(same_bits(tensor, saved.tensor(name)));
  }
}

TEST_CASE("padded rows, a tied head's second copy, a critic's order") {
  TemporaryFolder folder;
  const auto path = edited(folder, "qwen2", [](std::map<std::string, Tensor>& tensors) {
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  });
  const auto bridge = AutoBridge::from_hf_pretrained(path);
  Parameters params(bridge.config());
  const std::int64_t vocab = bridge.config().vocab_size, hidden = bridge.config().hidden_size;
  Tensor& embedding = params["embedding.word_embeddings.weight"];
  embedding = zeros({vocab + 3, hidden}, at::kFloat).fill_(9);
  bridge.load_weights(params.refs);
  embedding.narrow(0, vocab, 3).fill_(99);
  const HfWeights source(path);
  std::size_t heads = 0;
  for (const auto& [name, tensor] : bridge.export_hf_weights(params.refs)) {
    CHECK(same_bits(tensor, source.tensor(name)));
    heads += name == "lm_head.weight";
  }
  CHECK(heads == 1);

  const auto critic = AutoBridge::from_hf_pretrained(kData / "llama", Head::value);
  Parameters values(critic.config());
  critic.load_weights(values.refs);
  std::vector<std::string> expected = HfWeights(kData / "llama").names(), found;
  std::erase(expected, "lm_head.weight");
  expected.push_back("score.weight");
  for (const auto& [name, tensor] : critic.export_hf_weights(values.refs)) found.push_back(name);
  CHECK(found == expected);
}

TEST_CASE("the range is lazy and borrows: later values are seen, and only rows that lie apart are copied") {
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "llama");
  Parameters params(bridge.config());
  bridge.load_weights(params.refs);
  PerTensorParam range = bridge.export_hf_weights(params.refs);
  params["decoder.final_layernorm.weight"].fill_(3);
  params["decoder.layers.1.self_attention.linear_qkv.weight"].fill_(5);
  for (const auto& [name, tensor] : range) {
    const Tensor expected = zeros(tensor.sizes(), at::kFloat);
    if (name == "model.norm.weight") {
      CHECK(tensor.equal(expected.fill_(3)));
      CHECK(tensor.const_data_ptr() == params["decoder.final_layernorm.weight"].const_data_ptr());
    }
    if (name == "model.layers.1.self_attn.k_proj.weight") {
      CHECK(tensor.equal(expected.fill_(5)));
      const Tensor fused = params["decoder.layers.1.self_attention.linear_qkv.weight"];
      CHECK(tensor.use_count() == 1);  // nobody but the loop holds it
      CHECK((tensor.const_data_ptr<float>() < fused.const_data_ptr<float>() ||
             tensor.const_data_ptr<float>() >= fused.const_data_ptr<float>() + fused.numel()));
    }
  }
}

TEST_CASE("an element is let go at the next step, and a walk that was left can be begun anew") {
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen3");
  Parameters params(bridge.config());
  bridge.load_weights(params.refs);
  const HfWeights source(kData / "qwen3");
  // In double every element is a copy.
  PerTensorParam range = bridge.export_hf_weights(params.refs, at::kDouble);
  auto iterator = range.begin();
  const Tensor first = iterator->tensor;
  CHECK((*iterator).name == source.names()[0]);
  CHECK(first.use_count() == 2);
  CHECK(iterator->tensor.const_data_ptr() == first.const_data_ptr());  // made once
  ++iterator;
  CHECK(first.use_count() == 1);
  CHECK(iterator->name == source.names()[1]);
  for (const auto& [name, tensor] : range) {
    CHECK(name == source.names()[0]);
    CHECK(same_bits(tensor, first));
    break;
  }
  CHECK(std::ranges::distance(range) == static_cast<std::ptrdiff_t>(source.names().size()));
}

TEST_CASE("the plan is checked before the first tensor") {
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen3_value", Head::value);
  Parameters params(bridge.config());
  std::vector<ParamRef> some(params.refs.begin(), params.refs.end() - 1);
  CHECK(contains(error_of([&] { bridge.export_hf_weights(some); }),
                 "no parameter was given for tensor \"score.bias\""));
  std::vector<ParamRef> twice = params.refs;
  twice.push_back(twice.back());
  CHECK(contains(error_of([&] { bridge.export_hf_weights(twice); }), "output_layer.bias is given twice"));
  params["output_layer.weight"] = zeros({2, 48}, at::kFloat);
  CHECK(contains(error_of([&] { bridge.export_hf_weights(params.refs); }), "[2, 48], expected [1, 48]"));
}

}  // namespace
}  // namespace mgfl::bridge
