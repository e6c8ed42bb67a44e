#include "policies/model/transformer_config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "mgfl/base/error.hpp"

namespace mgfl::model {
namespace {

// More than any real model has, and small enough that products of three such sizes stay below 2^63.
constexpr std::int64_t kLargestSize = 1 << 20;
constexpr std::int64_t kLargestVocabulary = std::int64_t{1} << 31;

void check_size(std::string_view field, std::int64_t value, std::int64_t largest = kLargestSize) {
  check_user(value >= 1 && value <= largest, "config: ", field, " is ", value, ", expected 1 to ", largest);
}

void check_positive(std::string_view field, double value) {
  check_user(std::isfinite(value) && value > 0, "config: ", field, " is ", value,
             ", expected a number above 0");
}

// transformers.modeling_rope_utils._compute_llama3_parameters: long waves are slowed down by `factor`, short
// ones kept, and those between are blended.
double llama3_frequency(const RopeScaling& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < rope.original_max_position_embeddings / rope.high_freq_factor) return frequency;
  if (wavelength > rope.original_max_position_embeddings / rope.low_freq_factor)
    return frequency / rope.factor;
  const double smooth = (rope.original_max_position_embeddings / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// transformers.modeling_rope_utils._compute_yarn_parameters
void scale_yarn(const TransformerConfig& config, std::vector<double>& frequencies) {
  const RopeScaling& rope = config.rope_scaling;
  const double dim = static_cast<double>(config.kv_channels);
  // The dimension whose wave turns `rotations` times within the original context.
  const auto correction = [&](double rotations) {
    return dim * std::log(rope.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.rotary_base));
  };
  double low = correction(rope.beta_fast);
  double high = correction(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

}  // namespace

void validate(const TransformerConfig& config) {
  check_size("num_layers", config.num_layers);
  check_size("hidden_size", config.hidden_size);
  check_size("ffn_hidden_size", config.ffn_hidden_size, 8 * kLargestSize);
  check_size("num_attention_heads", config.num_attention_heads);
  check_size("num_query_groups", config.num_query_groups);
  check_size("kv_channels", config.kv_channels);
  check_size("vocab_size", config.vocab_size, kLargestVocabulary);
  check_size("max_position_embeddings", config.max_position_embeddings, kLargestVocabulary);
  check_user(config.num_attention_heads % config.num_query_groups == 0, "config: num_attention_heads ",
             config.num_attention_heads, " is no multiple of num_key_value_heads ", config.num_query_groups);
  check_user(config.kv_channels % 2 == 0, "config: head_dim is ", config.kv_channels,
             ", but rotary embeddings turn pairs and need an even one");
  check_positive("layernorm_epsilon", config.layernorm_epsilon);
  check_user(std::isfinite(config.init_method_std) && config.init_method_std >= 0,
             "config: initializer_range is ", config.init_method_std, ", expected 0 or more");
  check_user(static_cast<std::int64_t>(config.window_size.size()) == config.num_layers,
             "config: ", config.window_size.size(), " attention windows for ", config.num_layers,
             " layers, expected one for each");
  for (const std::int64_t window : config.window_size)
    check_user(window >= 0, "config: attention window is ", window, ", expected 0 (none) or more");
  for (const std::int64_t token : config.eos_token_ids)
    check_user(token >= 0, "config: eos_token_id is ", token, ", expected 0 or more");
  check_user(
      !config.value_head || !config.share_embeddings_and_output_weights,
      "config: a value head cannot be tied to the embedding; set share_embeddings_and_output_weights to "
      "false");
  check_user(config.value_head || !config.add_value_head_bias,
             "config: add_value_head_bias is set, but the model has no value head");

  const RopeScaling& rope = config.rope_scaling;
  check_positive("rope_theta", config.rotary_base);
  if (rope.type == RopeType::standard) return;
  check_positive("rope factor", rope.factor);
  if (rope.type == RopeType::linear) return;
  check_positive("rope original_max_position_embeddings", rope.original_max_position_embeddings);
  if (rope.type == RopeType::llama3) {
    check_positive("rope low_freq_factor", rope.low_freq_factor);
    check_user(std::isfinite(rope.high_freq_factor) && rope.high_freq_factor > rope.low_freq_factor,
               "config: rope high_freq_factor is ", rope.high_freq_factor,
               ", expected more than low_freq_factor ", rope.low_freq_factor);
    return;
  }
  check_positive("rope beta_fast", rope.beta_fast);
  check_positive("rope beta_slow", rope.beta_slow);
  check_user(rope.beta_fast >= rope.beta_slow, "config: rope beta_fast ", rope.beta_fast,
             " is below beta_slow ", rope.beta_slow);
  check_positive("rope attention_factor", rope.attention_factor);
  check_user(config.rotary_base > 1, "config: rope_theta is ", config.rotary_base,
             ", but yarn needs more than 1");
}

parallel::ModelSizes layout_sizes(const TransformerConfig& config) {
  parallel::ModelSizes sizes;
  sizes.num_layers = config.num_layers;
  sizes.num_attention_heads = config.num_attention_heads;
  sizes.num_query_groups = config.num_query_groups;
  sizes.ffn_hidden_size = config.ffn_hidden_size;
  return sizes;
}

std::vector<double> rotary_inverse_frequencies(const TransformerConfig& config) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.kv_channels; i += 2)
    frequencies.push_back(
        1.0 / std::pow(config.rotary_base, static_cast<double>(i) / static_cast<double>(config.kv_channels)));
  switch (config.rope_scaling.type) {
    case RopeType::standard:
      break;
    case RopeType::linear:
      for (double& frequency : frequencies) frequency /= config.rope_scaling.factor;
      break;
    case RopeType::llama3:
      for (double& frequency : frequencies) frequency = llama3_frequency(config.rope_scaling, frequency);
      break;
    case RopeType::yarn:
      scale_yarn(config, frequencies);
      break;
  }
  return frequencies;
}

}  // namespace mgfl::model
