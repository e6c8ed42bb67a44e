#include "policies/bridge/hf_tensors.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/placement.hpp"
#include "mgfl/tensor/tensor_of.hpp"

namespace mgfl::bridge {
namespace {

using model::TransformerConfig;

// How the rows of a fused parameter fall apart into Hugging Face's.
enum class Split {
  whole,
  qkv,      // per kv group: its query heads, its key, its value
  gate_up,  // all rows of gate, then all of up
};

enum class Dim { none, one, vocab, hidden, head, heads, qkv, ffn, gate_up };

struct Row {
  std::string_view name;               // Megatron's; `*` is the layer
  std::array<std::string_view, 3> hf;  // as many as the split has parts
  Split split;
  Dim rows, columns;
  bool TransformerConfig::*when = nullptr;  // present only where this field ...
  bool is = true;                           // ... has this value
};

constexpr Row kEmbedding[] = {
    {"embedding.word_embeddings.weight",
     {"model.embed_tokens.weight"},
     Split::whole,
     Dim::vocab,
     Dim::hidden},
};

constexpr Row kDenseLayer[] = {
    {"decoder.layers.*.input_layernorm.weight",
     {"model.layers.*.input_layernorm.weight"},
     Split::whole,
     Dim::hidden,
     Dim::none},
    {"decoder.layers.*.self_attention.linear_qkv.weight",
     {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
      "model.layers.*.self_attn.v_proj.weight"},
     Split::qkv,
     Dim::qkv,
     Dim::hidden},
    {"decoder.layers.*.self_attention.linear_qkv.bias",
     {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.k_proj.bias",
      "model.layers.*.self_attn.v_proj.bias"},
     Split::qkv,
     Dim::qkv,
     Dim::none,
     &TransformerConfig::add_qkv_bias},
    {"decoder.layers.*.self_attention.q_layernorm.weight",
     {"model.layers.*.self_attn.q_norm.weight"},
     Split::whole,
     Dim::head,
     Dim::none,
     &TransformerConfig::qk_layernorm},
    {"decoder.layers.*.self_attention.k_layernorm.weight",
     {"model.layers.*.self_attn.k_norm.weight"},
     Split::whole,
     Dim::head,
     Dim::none,
     &TransformerConfig::qk_layernorm},
    {"decoder.layers.*.self_attention.linear_proj.weight",
     {"model.layers.*.self_attn.o_proj.weight"},
     Split::whole,
     Dim::hidden,
     Dim::heads},
    {"decoder.layers.*.self_attention.linear_proj.bias",
     {"model.layers.*.self_attn.o_proj.bias"},
     Split::whole,
     Dim::hidden,
     Dim::none,
     &TransformerConfig::add_proj_bias},
    {"decoder.layers.*.pre_mlp_layernorm.weight",
     {"model.layers.*.post_attention_layernorm.weight"},
     Split::whole,
     Dim::hidden,
     Dim::none},
    {"decoder.layers.*.mlp.linear_fc1.weight",
     {"model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"},
     Split::gate_up,
     Dim::gate_up,
     Dim::hidden},
    {"decoder.layers.*.mlp.linear_fc1.bias",
     {"model.layers.*.mlp.gate_proj.bias", "model.layers.*.mlp.up_proj.bias"},
     Split::gate_up,
     Dim::gate_up,
     Dim::none,
     &TransformerConfig::add_mlp_bias},
    {"decoder.layers.*.mlp.linear_fc2.weight",
     {"model.layers.*.mlp.down_proj.weight"},
     Split::whole,
     Dim::hidden,
     Dim::ffn},
    {"decoder.layers.*.mlp.linear_fc2.bias",
     {"model.layers.*.mlp.down_proj.bias"},
     Split::whole,
     Dim::hidden,
     Dim::none,
     &TransformerConfig::add_mlp_bias},
};

constexpr Row kFinalNorm[] = {
    {"decoder.final_layernorm.weight", {"model.norm.weight"}, Split::whole, Dim::hidden, Dim::none},
};

constexpr Row kLanguageModelHead[] = {
    {"output_layer.weight",
     {"lm_head.weight"},
     Split::whole,
     Dim::vocab,
     Dim::hidden,
     &TransformerConfig::share_embeddings_and_output_weights,
     false},
};

constexpr Row kValueHead[] = {
    {"output_layer.weight", {"score.weight"}, Split::whole, Dim::one, Dim::hidden},
    {"output_layer.bias",
     {"score.bias"},
     Split::whole,
     Dim::one,
     Dim::none,
     &TransformerConfig::add_value_head_bias},
};

// A model's blocks in the order of the forward pass. A family with other layers is another entry here; its
// critics have a value head in place of `head`.
struct Table {
  std::string_view family;
  std::span<const Row> embedding, layer, final_norm, head;
};

constexpr Table kTables[] = {
    {"Llama", kEmbedding, kDenseLayer, kFinalNorm, kLanguageModelHead},
    {"Mistral", kEmbedding, kDenseLayer, kFinalNorm, kLanguageModelHead},
    {"Qwen2", kEmbedding, kDenseLayer, kFinalNorm, kLanguageModelHead},
    {"Qwen3", kEmbedding, kDenseLayer, kFinalNorm, kLanguageModelHead},
};

Table find_table(const TransformerConfig& config) {
  const std::string_view name = config.architecture;
  for (Table table : kTables) {
    if (table.family != name.substr(0, name.find("For"))) continue;
    if (config.value_head) table.head = kValueHead;
    return table;
  }
  throw UserError(concat("no table of Hugging Face tensors for architecture \"", config.architecture, "\""));
}

std::int64_t size_of(const TransformerConfig& config, Dim dim) {
  switch (dim) {
    case Dim::none:
      break;
    case Dim::one:
      return 1;
    case Dim::vocab:
      return config.vocab_size;
    case Dim::hidden:
      return config.hidden_size;
    case Dim::head:
      return config.kv_channels;
    case Dim::heads:
      return config.num_attention_heads * config.kv_channels;
    case Dim::qkv:
      return (config.num_attention_heads + 2 * config.num_query_groups) * config.kv_channels;
    case Dim::ffn:
      return config.ffn_hidden_size;
    case Dim::gate_up:
      return 2 * config.ffn_hidden_size;
  }
  return 0;
}

std::vector<std::int64_t> shape_of(const TransformerConfig& config, const Row& row) {
  std::vector<std::int64_t> shape{size_of(config, row.rows)};
  if (row.columns != Dim::none) shape.push_back(size_of(config, row.columns));
  return shape;
}

bool is_present(const TransformerConfig& config, const Row& row) {
  return row.when == nullptr || config.*row.when == row.is;
}

std::string with_layer(std::string_view pattern, std::string_view layer) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return std::string(pattern);
  return concat(pattern.substr(0, star), layer, pattern.substr(star + 1));
}

// What stands for `*` when `name` fits the pattern: the layer's digits, or an empty text for a pattern
// without `*`.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos)
    return name == pattern ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  if (name.size() <= head.size() + tail.size() || name.substr(0, head.size()) != head ||
      name.substr(name.size() - tail.size()) != tail)
    return std::nullopt;
  const std::string_view layer = name.substr(head.size(), name.size() - head.size() - tail.size());
  if (layer.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return layer;
}

// Rows of each Hugging Face tensor of a table row.
std::vector<std::int64_t> part_rows(const TransformerConfig& config, const Row& row) {
  const std::int64_t kv = config.num_query_groups * config.kv_channels;
  switch (row.split) {
    case Split::whole:
      return {size_of(config, row.rows)};
    case Split::qkv:
      return {config.num_attention_heads * config.kv_channels, kv, kv};
    case Split::gate_up:
      return {config.ffn_hidden_size, config.ffn_hidden_size};
  }
  return {};
}

std::vector<NamedShape> parts_of(const TransformerConfig& config, const Row& row, std::string_view layer) {
  std::vector<NamedShape> parts;
  for (const std::int64_t rows : part_rows(config, row)) {
    NamedShape part{with_layer(row.hf[parts.size()], layer), {rows}};
    if (row.columns != Dim::none) part.shape.push_back(size_of(config, row.columns));
    parts.push_back(std::move(part));
  }
  return parts;
}

// The views of the parts within `fused`, in the order of the table row's names.
std::vector<Tensor> views_of(const TransformerConfig& config, const Row& row, const Tensor& fused) {
  switch (row.split) {
    case Split::whole:
      return {fused.narrow(0, 0, size_of(config, row.rows))};
    case Split::qkv: {
      const std::int64_t queries = config.num_attention_heads / config.num_query_groups;
      std::vector<std::int64_t> shape{config.num_query_groups, queries + 2, config.kv_channels};
      if (fused.dim() == 2) shape.push_back(fused.size(1));
      const Tensor groups = fused.view(shape);
      return {groups.narrow(1, 0, queries), groups.narrow(1, queries, 1), groups.narrow(1, queries + 1, 1)};
    }
    case Split::gate_up:
      return {fused.narrow(0, 0, config.ffn_hidden_size),
              fused.narrow(0, config.ffn_hidden_size, config.ffn_hidden_size)};
  }
  return {};
}

// A tensor of that shape whose elements are the numbers of their rows.
Tensor row_numbers(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return zeros({}, at::kLong);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(shape[0]));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<std::int64_t> column(shape.size(), 1);
  column[0] = shape[0];
  return tensor_of(numbers).view(column).expand(shape);
}

// Runs of neighbours among the rows of a view of row numbers.
std::vector<HfRows> runs_of(const HfTensor& part) {
  const Tensor numbers =
      (part.shape.size() > 1 ? part.view.select(-1, 0) : part.view).reshape({-1}).contiguous();
  const auto* number = numbers.const_data_ptr<std::int64_t>();
  std::vector<HfRows> runs;
  for (std::int64_t row = 0; row < numbers.numel(); ++row) {
    if (runs.empty() || number[row] != runs.back().fused + runs.back().count)
      runs.push_back({row, number[row], 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace

std::vector<Mapping> mappings(const TransformerConfig& config) {
  std::vector<Mapping> result;
  const auto block = [&](std::span<const Row> rows, std::string_view layer) {
    for (const Row& row : rows)
      if (is_present(config, row))
        result.push_back(
            {{with_layer(row.name, layer), shape_of(config, row)}, parts_of(config, row, layer)});
  };
  const Table table = find_table(config);
  block(table.embedding, "");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) block(table.layer, std::to_string(layer));
  block(table.final_norm, "");
  block(table.head, "");
  return result;
}

std::vector<NamedShape> parameters(const TransformerConfig& config) {
  std::vector<NamedShape> result;
  for (Mapping& mapping : mappings(config)) result.push_back(std::move(mapping.param));
  return result;
}

std::vector<NamedShape> hf_parameters(const TransformerConfig& config) {
  std::vector<NamedShape> result;
  for (Mapping& mapping : mappings(config))
    for (NamedShape& part : mapping.hf) result.push_back(std::move(part));
  return result;
}

std::vector<HfTensor> hf_tensors(const TransformerConfig& config, const ParamDesc& desc,
                                 const Tensor& fused) {
  const Table table = find_table(config);
  for (const auto block : {table.embedding, table.layer, table.final_norm, table.head}) {
    for (const Row& row : block) {
      const auto layer = match(row.name, desc.name);
      if (!layer || !is_present(config, row)) continue;
      std::vector<std::int64_t> expected = shape_of(config, row);
      const auto found = fused.sizes().vec();
      // The vocabulary may be padded to more rows than the model has tokens.
      if (row.rows == Dim::vocab && !found.empty() && found[0] > expected[0]) expected[0] = found[0];
      check_run(found == expected, "parameter ", desc.name, " has shape [", join(found), "], expected [",
                join(expected), "] from the config");
      std::vector<HfTensor> result;
      const std::vector<Tensor> views = views_of(config, row, fused);
      for (NamedShape& part : parts_of(config, row, *layer)) {
        const Tensor& view = views[result.size()];
        result.push_back({std::move(part.name), std::move(part.shape), view});
      }
      return result;
    }
  }
  throw RunError(concat("parameter ", desc.name,
                        " has no counterpart in a Hugging Face model of architecture ", config.architecture,
                        " with this config"));
}

std::vector<HfPart> hf_parts(const TransformerConfig& config, const ParamDesc& desc, const Tensor& local) {
  auto shape = local.sizes().vec();
  if (!parallel::is_whole(desc)) {
    const auto expected = parallel::local_shape(desc);
    check_run(shape == expected, "parameter ", desc.name, " has shape [", join(shape), "], expected [",
              join(expected), "] on this tensor-parallel rank");
    shape = desc.shape;
  }
  std::vector<HfPart> parts;
  for (HfTensor& part : hf_tensors(config, desc, row_numbers(shape))) {
    auto rows = runs_of(part);
    parts.push_back({std::move(part.name), std::move(part.shape), std::move(rows)});
  }
  return parts;
}

void take_part(const ParamDesc& desc, const HfPart& part, const Tensor& source, Tensor& local) {
  for (const auto& piece : parallel::pieces(desc)) {
    for (const auto& run : part.rows) {
      if (parallel::split_dimension(desc) == 1) {
        local.narrow(0, run.fused, run.count)
            .narrow(1, piece.local, piece.length)
            .copy_(source.narrow(0, run.first, run.count).narrow(1, piece.logical, piece.length));
        continue;
      }
      const auto first = std::max(run.fused, piece.logical);
      const auto last = std::min(run.fused + run.count, piece.logical + piece.length);
      if (first < last)
        local.narrow(0, piece.local + first - piece.logical, last - first)
            .copy_(source.narrow(0, run.first + first - run.fused, last - first));
    }
    if (desc.placement == PlacementKind::vocab) {
      const auto filled = std::clamp<std::int64_t>(part.shape[0] - piece.logical, 0, piece.length);
      local.narrow(0, filled, local.size(0) - filled).zero_();
    }
  }
}

}  // namespace mgfl::bridge
