#include "mgfl/engine/settings.hpp"

#include "mgfl/base/error.hpp"
#include "mgfl/base/optional_text.hpp"

namespace mgfl {

namespace {

template <class Value>
const Value& shown(const Value& value) {
  return value;
}
std::string shown(const std::optional<double>& value) { return text_or_unset(value); }

}  // namespace

std::string settings_text(const EngineConfig& e, const optimizer::OptimizerConfig& o) {
  auto all = concat("optimizer ", o.optimizer == optimizer::OptimizerKind::sgd ? "sgd" : "adam");
  const auto add = [&](const char* name, const auto& value) { all += concat("\n", name, " ", shown(value)); };
  add("lr", o.lr);
  add("min_lr", o.min_lr);
  add("weight_decay", o.weight_decay);
  add("decoupled_lr", o.decoupled_lr);
  add("decoupled_min_lr", o.decoupled_min_lr);
  add("apply_wd_to_qk_layernorm", o.apply_wd_to_qk_layernorm);
  add("adam_beta1", o.adam_beta1);
  add("adam_beta2", o.adam_beta2);
  add("adam_eps", o.adam_eps);
  add("sgd_momentum", o.sgd_momentum);
  add("clip_grad", o.clip_grad);
  add("grad_norm_type", o.grad_norm_type);
  add("grad_norm_skip_threshold", o.grad_norm_skip_threshold);
  add("max_skipped_steps", o.max_skipped_steps);
  add("log_num_zeros_in_grad", o.log_num_zeros_in_grad);
  add("loss_scale", o.loss_scale);
  add("initial_loss_scale", o.initial_loss_scale);
  add("min_loss_scale", o.min_loss_scale);
  add("loss_scale_window", o.loss_scale_window);
  add("hysteresis", o.hysteresis);
  add("micro_batch_size", e.micro_batch_size);
  add("max_tokens_per_micro_batch", e.max_tokens_per_micro_batch);
  add("infer_micro_batch_size", e.infer_micro_batch_size);
  add("infer_max_tokens_per_micro_batch", e.infer_max_tokens_per_micro_batch);
  add("forward_only", e.forward_only);
  add("use_fused_kernels", e.use_fused_kernels);
  add("calculate_entropy", e.calculate_entropy);
  add("calculate_sum_pi_squared", e.calculate_sum_pi_squared);
  add("calculate_mean_log_probs", e.calculate_mean_log_probs);
  add("sequence_parallel", e.sequence_parallel);
  add("make_vocab_size_divisible_by", e.make_vocab_size_divisible_by);
  for (const auto& group : o.overrides)
    all += concat("\n", group.name, " max_lr ", shown(group.max_lr), " min_lr ", shown(group.min_lr),
                  " wd_mult ", shown(group.wd_mult));
  return all;
}

}  // namespace mgfl
