#include "policies/optimizer/flat_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/base/optional_text.hpp"

namespace mgfl::optimizer {

namespace {

bool fits(std::string_view name, std::string_view pattern) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (auto from = star; from <= name.size(); ++from)
    if (fits(name.substr(from), pattern.substr(star + 1))) return true;
  return false;
}

/// All overrides in their order; those that decoupled_lr stands for come first.
std::vector<ParamGroupOverride> overrides_of(const OptimizerConfig& config) {
  std::vector<ParamGroupOverride> overrides;
  if (config.decoupled_lr) overrides.push_back({"", config.decoupled_lr, config.decoupled_min_lr, {}});
  overrides.insert(overrides.end(), config.overrides.begin(), config.overrides.end());
  return overrides;
}

bool is_embedding_or_output_layer(std::string_view name) {
  return name.starts_with("embedding.word_embeddings.") || name.starts_with("output_layer.");
}

bool decays(const ParamDesc& desc, const OptimizerConfig& config) {
  const std::string_view name = desc.name;
  return desc.weight_decay || (config.apply_wd_to_qk_layernorm && (name.ends_with(".q_layernorm.weight") ||
                                                                   name.ends_with(".k_layernorm.weight")));
}

}  // namespace

void check_config(const OptimizerConfig& config) {
  const auto check = [](bool holds, const char* field, double value, const char* range) {
    check_user(holds, "OptimizerConfig::", field, " is ", value, "; give ", range, ".");
  };
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  check(is_share(config.adam_beta1), "adam_beta1", config.adam_beta1, "0 or more, below 1");
  check(is_share(config.adam_beta2), "adam_beta2", config.adam_beta2, "0 or more, below 1");
  // Above 0: an element that never had a gradient would become 0 / 0.
  check(config.adam_eps > 0 && std::isfinite(config.adam_eps), "adam_eps", config.adam_eps,
        "a number above 0");
  check(is_share(config.sgd_momentum), "sgd_momentum", config.sgd_momentum, "0 or more, below 1");
  check(config.clip_grad >= 0, "clip_grad", config.clip_grad, "a length, or 0 for no clipping");
  // Powers above it vanish in double precision for gradients that are there.
  const double p = config.grad_norm_type;
  check((p >= 1 && p <= 16) || (std::isinf(p) && p > 0), "grad_norm_type", p,
        "2, another p from 1 to 16, or infinity, to which larger ones come near");
  check(config.grad_norm_skip_threshold > 0, "grad_norm_skip_threshold", config.grad_norm_skip_threshold,
        "a length, or infinity");
  check(config.max_skipped_steps >= 0, "max_skipped_steps", static_cast<double>(config.max_skipped_steps),
        "a number of steps, or 0 for no end");
  check(!config.decoupled_min_lr || config.decoupled_lr, "decoupled_min_lr",
        config.decoupled_min_lr.value_or(0), "decoupled_lr as well");
  for (const auto& rule : config.overrides) {
    const auto is_fine = [](const std::optional<double>& value) {
      return !value || (std::isfinite(*value) && *value >= 0);
    };
    check_user(is_fine(rule.wd_mult) && is_fine(rule.max_lr) && is_fine(rule.min_lr),
               "OptimizerConfig::overrides: that of \"", rule.name, "\" has wd_mult ",
               text_or_unset(rule.wd_mult), ", max_lr ", text_or_unset(rule.max_lr), " and min_lr ",
               text_or_unset(rule.min_lr), "; give finite numbers of 0 or more.");
  }
}

void check_overrides_fit(const std::vector<ParamRef>& params, const OptimizerConfig& config) {
  for (const auto& rule : config.overrides)
    check_user(
        std::ranges::any_of(params, [&](const auto& param) { return fits(param.desc->name, rule.name); }),
        "OptimizerConfig::overrides: \"", rule.name,
        "\" is the name of no parameter of this model; its first is \"",
        params.empty() ? "" : params.front().desc->name, "\", and each * stands for any text.");
}

std::vector<ParamGroup> param_groups_of(const OptimizerConfig& config) {
  std::vector<ParamGroup> groups;
  const auto add = [&](const ParamGroupOverride& rule) {
    for (const double mult : {1.0, 0.0}) {
      const double wd_mult = rule.wd_mult.value_or(mult);
      groups.push_back({rule.max_lr.value_or(config.lr), config.weight_decay * wd_mult, wd_mult, rule.max_lr,
                        rule.min_lr});
    }
  };
  add({});
  for (const auto& rule : overrides_of(config)) add(rule);
  return groups;
}

std::size_t group_of(const ParamDesc& desc, const OptimizerConfig& config) {
  std::size_t pair = config.decoupled_lr && is_embedding_or_output_layer(desc.name) ? 1 : 0;
  const std::size_t first = config.decoupled_lr ? 2 : 1;
  for (std::size_t i = 0; i < config.overrides.size(); ++i)
    if (fits(desc.name, config.overrides[i].name)) pair = first + i;
  return 2 * pair + (decays(desc, config) ? 0 : 1);
}

std::vector<Segment> segments_of(const ParamBuffer& buffer, const OptimizerConfig& config) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < buffer.params.size(); ++i) {
    const auto next = i + 1 < buffer.params.size() ? buffer.offsets[i + 1] : buffer.numel;
    const auto begin = std::max(buffer.offsets[i], buffer.begin) - buffer.begin;
    const auto end = std::min(next, buffer.end) - buffer.begin;
    if (begin >= end) continue;
    const std::size_t group = group_of(*buffer.params[i].desc, config);
    if (!segments.empty() && segments.back().group == group)
      segments.back().end = end;
    else
      segments.push_back({begin, end, group});
  }
  return segments;
}

}  // namespace mgfl::optimizer
