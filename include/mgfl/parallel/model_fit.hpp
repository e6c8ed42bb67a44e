/// Whether a model's sizes fit a layout: one set of constexpr rules for sizes known when compiling and at
/// start.
#pragma once

#include <cstdint>

#include "mgfl/parallel/layout.hpp"

namespace mgfl::parallel {

/// The sizes of a model that a layout divides.
struct ModelSizes {
  std::int64_t num_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // kv heads
  std::int64_t ffn_hidden_size = 0;   // of dense layers; 0 where all layers have experts
  std::int64_t num_moe_experts = 0;   // 0: no layer has experts
  std::int64_t moe_ffn_hidden_size = 0;
};

/// The rules. An extent that is `dynamic` keeps each of them open, so they hold.
namespace fit {

constexpr bool divides(std::int64_t extent, std::int64_t size) {
  return extent == dynamic || (extent > 0 && size % extent == 0);
}

constexpr bool sizes_are_there(const ModelSizes& m) {
  return m.num_layers > 0 && m.num_attention_heads > 0 && m.num_query_groups > 0 && m.ffn_hidden_size >= 0 &&
         m.num_moe_experts >= 0 && m.moe_ffn_hidden_size >= 0 &&
         (m.ffn_hidden_size > 0 || m.num_moe_experts > 0) &&
         (m.num_moe_experts > 0) == (m.moe_ffn_hidden_size > 0);
}

constexpr bool attention_heads(const ModelSizes& m, const Extents& e) {
  return divides(e.tp, m.num_attention_heads);
}

/// With more ranks than kv heads each of these has several ranks that keep a copy.
constexpr bool query_groups(const ModelSizes& m, const Extents& e) {
  return divides(e.tp, m.num_query_groups) || divides(m.num_query_groups, e.tp);
}

constexpr bool ffn(const ModelSizes& m, const Extents& e) { return divides(e.tp, m.ffn_hidden_size); }

constexpr bool layers(const ModelSizes& m, const Extents& e) {
  return e.pp == dynamic || e.vpp == dynamic || divides(std::int64_t{e.pp} * e.vpp, m.num_layers);
}

constexpr bool chunks(const Extents& e) {
  return e.pp == dynamic || e.pp > 1 || e.vpp == 1 || e.vpp == dynamic;
}

constexpr bool experts(const ModelSizes& m, const Extents& e) {
  return m.num_moe_experts > 0 ? divides(e.ep, m.num_moe_experts) : e.ep == dynamic || e.ep == 1;
}

constexpr bool expert_ffn(const ModelSizes& m, const Extents& e) {
  return divides(e.etp, m.moe_ffn_hidden_size);
}

}  // namespace fit

/// UserError that names, with both numbers, every size that the extents do not divide, and the
/// tensor-parallel sizes that would fit; as RankGrid where the extents are no layout.
void check_model_fits(const ModelSizes& sizes, const Extents& extents);

/// UserError, with both numbers, where an engine that was compiled for one model is given another.
void check_static_model(const ModelSizes& compiled, const ModelSizes& given);

}  // namespace mgfl::parallel
