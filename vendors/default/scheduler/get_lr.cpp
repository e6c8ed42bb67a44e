#include "vendors/default/scheduler/get_lr.hpp"

#include "policies/scheduler/optimizer_param_scheduler.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "mgfl/override/dispatch.hpp"

namespace mgfl {

namespace {

using scheduler::LrDecayStyle;

double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

double warmup_stable_decay(const scheduler::OptimizerParamSchedulerConfig& c, std::int64_t t, double max_lr) {
  const std::int64_t rest = c.lr_decay_steps - c.lr_warmup_steps;
  const std::int64_t stable = std::llround(static_cast<double>(rest) * 10 / 11);
  if (t < stable) return max_lr;
  return max_lr * std::pow(0.5, share(t - stable, std::max<std::int64_t>(rest - stable, 1)));
}

double stablelm2(const scheduler::StableLm2SchedulerConfig& c, std::int64_t decay_steps, std::int64_t t,
                 double min_lr) {
  if (t <= c.cosine_samples)
    return c.cosine_max_lr *
           (0.1 + 0.45 * (1 + std::cos(2 * std::numbers::pi * share(t, c.cosine_period_samples))));
  const auto rsqrt = [&](std::int64_t position) {
    return c.alpha / std::sqrt(share(position, c.global_batch_size) + c.beta);
  };
  if (t <= c.rsqrt_samples) return rsqrt(t);
  const double last = rsqrt(c.rsqrt_samples);
  if (c.decay_samples == 0) return last * (1 - share(t - c.rsqrt_samples, decay_steps - c.rsqrt_samples));
  const auto end = std::min(decay_steps, c.rsqrt_samples + c.decay_samples);
  if (t > end) return min_lr;
  return min_lr + (1 - share(t - c.rsqrt_samples, end - c.rsqrt_samples)) * (last - min_lr);
}

}  // namespace

double implementation<targets::get_lr, vendors::default_>::call(
    const scheduler::OptimizerParamScheduler& self, const optimizer::ParamGroup& group) {
  const auto& c = self.config();
  const bool has_stages = c.stablelm2_scheduler_config.has_value();
  if (!has_stages && c.lr_decay_style != LrDecayStyle::warmup_stable_decay)
    return dispatch_next<targets::get_lr, vendors::default_>(self, group);
  const double max_lr = group.max_lr.value_or(*c.max_lr), min_lr = group.min_lr.value_or(*c.min_lr);
  const std::int64_t t = self.num_steps();
  if (c.lr_warmup_steps > 0 && t <= c.lr_warmup_steps)
    return c.init_lr + (max_lr - c.init_lr) * share(t, c.lr_warmup_steps);
  if (t > c.lr_decay_steps) return min_lr;
  return has_stages ? stablelm2(*c.stablelm2_scheduler_config, c.lr_decay_steps, t, min_lr)
                    : warmup_stable_decay(c, t, max_lr);
}

}  // namespace mgfl
