#include "policies/model/layer_pass.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace mgfl::model {

using kernels::main_dtype;

void rotary_tables(const Batch& batch, const std::vector<double>& inverse_frequencies, double factor,
                   Tensor& cos, Tensor& sin) {
  const auto tokens = batch.num_tokens();
  const auto half = static_cast<std::int64_t>(inverse_frequencies.size());
  std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
  if (batch.position_ids.defined()) {
    const auto* given = batch.position_ids.const_data_ptr<std::int64_t>();
    std::copy(given, given + tokens, positions.begin());
  } else {
    const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
    for (std::int64_t s = 0; s < batch.num_sequences(); ++s)
      for (auto t = borders[s]; t < borders[s + 1]; ++t)
        positions[static_cast<std::size_t>(t)] = t - borders[s];
  }
  const auto fill = [&](auto* cos_row, auto* sin_row) {
    using M = std::remove_reference_t<decltype(*cos_row)>;
    for (auto position : positions) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * inverse_frequencies[static_cast<std::size_t>(i)];
        cos_row[i] = static_cast<M>(std::cos(angle) * factor);
        sin_row[i] = static_cast<M>(std::sin(angle) * factor);
      }
      cos_row += half;
      sin_row += half;
    }
  };
  if (cos.scalar_type() == at::kDouble)
    fill(cos.data_ptr<double>(), sin.data_ptr<double>());
  else
    fill(cos.data_ptr<float>(), sin.data_ptr<float>());
}

LayerActivations take_layer(Arena& arena, const TransformerConfig& config, const RankSizes& sizes,
                            std::int64_t rows, std::int64_t tokens, at::ScalarType dtype) {
  const auto& layout = sizes.qkv;
  const auto main = main_dtype(dtype);
  LayerActivations saved;
  saved.input = arena.take({rows, config.hidden_size}, dtype);
  saved.input_rstd = arena.take({rows}, main);
  if (config.qk_layernorm) {
    saved.qkv_before_norm = arena.take({tokens, layout.row_width()}, dtype);
    saved.qk_rstd = arena.take({tokens, layout.heads() + layout.groups}, main);
  }
  saved.qkv = arena.take({tokens, layout.row_width()}, dtype);
  saved.context = arena.take({tokens, layout.heads() * layout.head_dim}, dtype);
  saved.lse = arena.take({layout.heads(), tokens}, main);
  saved.middle = arena.take({rows, config.hidden_size}, dtype);
  saved.middle_rstd = arena.take({rows}, main);
  saved.gate_up = arena.take({tokens, 2 * sizes.ffn}, dtype);
  return saved;
}

}  // namespace mgfl::model
