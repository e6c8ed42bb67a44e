#include "mgfl/engine/settings.hpp"

#include "mgfl/base/error.hpp"

namespace mgfl {

namespace {

std::string text(const std::optional<double>& value) { return value ? concat(*value) : "unset"; }

}  // namespace

std::string settings_text(const EngineConfig& e, const optimizer::OptimizerConfig& o) {
  auto all = concat(
      "optimizer ", o.optimizer == optimizer::OptimizerKind::sgd ? "sgd" : "adam", " lr ", o.lr, " min_lr ",
      o.min_lr, " weight_decay ", o.weight_decay, " decoupled_lr ", text(o.decoupled_lr), " ",
      text(o.decoupled_min_lr), " apply_wd_to_qk_layernorm ", o.apply_wd_to_qk_layernorm, " betas ",
      o.adam_beta1, " ", o.adam_beta2, " eps ", o.adam_eps, " sgd_momentum ", o.sgd_momentum, " clip_grad ",
      o.clip_grad, " of norm ", o.grad_norm_type, " grad_norm_skip_threshold ", o.grad_norm_skip_threshold,
      " max_skipped_steps ", o.max_skipped_steps, " log_num_zeros_in_grad ", o.log_num_zeros_in_grad,
      " loss_scale ", text(o.loss_scale), " initial_loss_scale ", o.initial_loss_scale, " min_loss_scale ",
      o.min_loss_scale, " loss_scale_window ", o.loss_scale_window, " hysteresis ", o.hysteresis,
      ", engine micro_batch_size ", e.micro_batch_size, " max_tokens_per_micro_batch ",
      e.max_tokens_per_micro_batch, " infer_micro_batch_size ", e.infer_micro_batch_size,
      " infer_max_tokens_per_micro_batch ", e.infer_max_tokens_per_micro_batch, " forward_only ",
      e.forward_only, " use_fused_kernels ", e.use_fused_kernels, " outputs ", e.calculate_entropy,
      e.calculate_sum_pi_squared, e.calculate_mean_log_probs, " sequence_parallel ", e.sequence_parallel,
      " make_vocab_size_divisible_by ", e.make_vocab_size_divisible_by);
  for (const auto& group : o.overrides)
    all += concat(", ", group.name, " max_lr ", text(group.max_lr), " min_lr ", text(group.min_lr),
                  " wd_mult ", text(group.wd_mult));
  return all;
}

}  // namespace mgfl
