#include "policies/scheduler/optimizer_param_scheduler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <ostream>
#include <utility>

#include "mgfl/base/error.hpp"
#include "mgfl/override/dispatch.hpp"
#include "policies/scheduler/get_lr_decl.hpp"

namespace mgfl::scheduler {
namespace {

// Indexed by the enumerators.
constexpr std::array<std::string_view, 6> lr_names{
    "constant", "linear", "cosine", "inverse-square-root", "WSD", "warmup-stable-decay"};
constexpr std::array<std::string_view, 4> wsd_names{"linear", "cosine", "exponential", "minus_sqrt"};
constexpr std::array<std::string_view, 3> wd_names{"constant", "linear", "cosine"};

template <class Style, std::size_t N>
Style style_named(std::string_view name, const std::array<std::string_view, N>& names,
                  std::string_view what) {
  const auto found = std::find(names.begin(), names.end(), name);
  check_user(found != names.end(), "the ", what, " \"", name, "\" does not exist; choose one of ",
             join(names), ".");
  return static_cast<Style>(found - names.begin());
}

double half_cosine(double turn) { return 0.5 * (std::cos(std::numbers::pi * turn) + 1.0); }

void check_rate(std::string_view name, double value) {
  check_user(std::isfinite(value) && value >= 0, "the ", name, " of the learning-rate schedule is ", value,
             "; give a finite number that is not negative.");
}

void check_bounds(double min_lr, double max_lr, std::string_view whose) {
  check_rate("min_lr", min_lr);
  check_rate("max_lr", max_lr);
  check_user(min_lr <= max_lr, "the min_lr ", min_lr, " of ", whose, " is above its max_lr ", max_lr,
             "; give a lower min_lr or a higher max_lr.");
}

void check_start(double init_lr, double max_lr, std::string_view whose) {
  check_user(init_lr <= max_lr, "the warm-up starts at a learning rate of ", init_lr, ", above the max_lr ",
             max_lr, " of ", whose, "; give a lower init_lr or a higher max_lr.");
}

void check_stages(const StableLm2SchedulerConfig& stages) {
  check_rate("cosine_max_lr", stages.cosine_max_lr);
  check_rate("alpha", stages.alpha);
  check_rate("beta", stages.beta);
  check_user(stages.cosine_period_samples > 0 && stages.cosine_samples >= 0 &&
                 stages.rsqrt_samples > stages.cosine_samples && stages.decay_samples >= 0 &&
                 stages.global_batch_size > 0,
             "stablelm2_scheduler_config is ", stages,
             "; it needs a cosine_period_samples and a global_batch_size above 0, and cosine_samples below "
             "rsqrt_samples.");
}

void check_config(const OptimizerParamSchedulerConfig& c) {
  check_bounds(*c.min_lr, *c.max_lr, "the learning-rate schedule");
  check_rate("init_lr", c.init_lr);
  check_start(c.init_lr, *c.max_lr, "the learning-rate schedule");
  check_user(c.lr_decay_steps > 0, "lr_decay_steps is ", c.lr_decay_steps,
             "; the schedule needs at least one step.");
  check_user(c.lr_warmup_steps >= 0, "lr_warmup_steps is ", c.lr_warmup_steps, "; give 0 or more.");
  check_user(c.lr_warmup_steps < c.lr_decay_steps, "the warm-up of ", c.lr_warmup_steps,
             " steps fills the whole schedule of ", c.lr_decay_steps,
             " steps (warm-up included); shorten the warm-up or", " lengthen the decay.");
  if (c.lr_decay_style == LrDecayStyle::wsd)
    check_user(c.lr_wsd_decay_steps > 0 && c.lr_wsd_decay_steps <= c.lr_decay_steps, "lr_wsd_decay_steps is ",
               c.lr_wsd_decay_steps, "; WSD needs 1 to ", c.lr_decay_steps, " (lr_decay_steps).");
  if (c.stablelm2_scheduler_config) check_stages(*c.stablelm2_scheduler_config);
  check_rate("start_wd", *c.start_wd);
  check_rate("end_wd", *c.end_wd);
  if (c.wd_incr_style == WdIncrStyle::constant) {
    check_user(c.start_wd == c.end_wd, "a constant weight decay cannot go from start_wd ", *c.start_wd,
               " to end_wd ", *c.end_wd, "; choose linear or cosine, or one value.");
  } else {
    check_user(c.start_wd <= c.end_wd, "the weight decay goes down from start_wd ", *c.start_wd,
               " to end_wd ", *c.end_wd, "; give an end that is not below the start.");
    check_user(c.wd_incr_steps > 0, "wd_incr_steps is ", c.wd_incr_steps,
               "; a weight decay that grows needs at least one", " step.");
  }
  check_user(!(c.use_checkpoint && c.override),
             "override_opt_param_scheduler and use_checkpoint_opt_param_scheduler",
             " exclude each other; keep one.");
}

/// The config with what it leaves open.
OptimizerParamSchedulerConfig completed(OptimizerParamSchedulerConfig config,
                                        const optimizer::Optimizer& optimizer) {
  const auto complete = [](std::optional<double>& value, double other) { value = value.value_or(other); };
  complete(config.max_lr, optimizer.lr);
  complete(config.min_lr, optimizer.min_lr);
  complete(config.start_wd, optimizer.weight_decay);
  complete(config.end_wd, optimizer.weight_decay);
  return config;
}

template <class Value>
std::string shown(const Value& value) {
  if constexpr (std::is_enum_v<Value>)
    return std::string(to_string(value));
  else
    return concat(value);
}
template <class Value>
std::string shown(const std::optional<Value>& value) {
  return value ? shown(*value) : "not set";
}

/// Gives the groups the saved rates. ScheduleMismatch where they differ and the checkpoint's are not wanted,
/// or where there are other groups: those follow from the optimizer's config.
void take_groups(const std::vector<GroupRates>& saved, bool use_checkpoint,
                 std::vector<optimizer::ParamGroup>& groups) {
  if (saved.size() != groups.size())
    throw ScheduleMismatch("number of parameter groups", concat(groups.size()), concat(saved.size()), false);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto take = [&](const char* name, auto& mine, const auto& theirs) {
      if (mine == theirs) return;
      if (!use_checkpoint)
        throw ScheduleMismatch(concat(name, " of parameter group ", i), shown(mine), shown(theirs));
      mine = theirs;
    };
    take("max_lr", groups[i].max_lr, saved[i].max_lr);
    take("min_lr", groups[i].min_lr, saved[i].min_lr);
    take("wd_mult", groups[i].wd_mult, saved[i].wd_mult);
  }
}

/// Share of (max_lr - min_lr) that is left in the WSD schedule at step t.
double wsd_share(const OptimizerParamSchedulerConfig& c, std::int64_t t) {
  const std::int64_t start = c.lr_decay_steps - c.lr_wsd_decay_steps;
  if (t <= start) return 1.0;
  const double q = static_cast<double>(t - start) / static_cast<double>(c.lr_wsd_decay_steps);
  switch (c.lr_wsd_decay_style) {
    case WsdDecayStyle::linear:
      return 1.0 - q;
    case WsdDecayStyle::cosine:
      return half_cosine(q);
    case WsdDecayStyle::exponential:
      return 2.0 * std::pow(0.5, q) - 1.0;
    case WsdDecayStyle::minus_sqrt:
      return 1.0 - std::sqrt(q);
  }
  return 1.0;
}

}  // namespace

std::string_view to_string(LrDecayStyle style) { return lr_names[static_cast<std::size_t>(style)]; }
std::string_view to_string(WsdDecayStyle style) { return wsd_names[static_cast<std::size_t>(style)]; }
std::string_view to_string(WdIncrStyle style) { return wd_names[static_cast<std::size_t>(style)]; }

LrDecayStyle lr_decay_style(std::string_view name) {
  return style_named<LrDecayStyle>(name, lr_names, "learning-rate decay style");
}
WsdDecayStyle wsd_decay_style(std::string_view name) {
  return style_named<WsdDecayStyle>(name, wsd_names, "WSD decay style");
}
WdIncrStyle wd_incr_style(std::string_view name) {
  return style_named<WdIncrStyle>(name, wd_names, "weight-decay style");
}

std::ostream& operator<<(std::ostream& out, const StableLm2SchedulerConfig& c) {
  return out << "{cosine_max_lr " << c.cosine_max_lr << ", cosine_period_samples " << c.cosine_period_samples
             << ", cosine_samples " << c.cosine_samples << ", alpha " << c.alpha << ", beta " << c.beta
             << ", global_batch_size " << c.global_batch_size << ", rsqrt_samples " << c.rsqrt_samples
             << ", decay_samples " << c.decay_samples << "}";
}

ScheduleMismatch::ScheduleMismatch(std::string field, std::string here, std::string saved,
                                   bool can_use_checkpoint)
    : UserError(concat("the schedule's ", field, " is ", here, " here and ", saved, " in the checkpoint; ",
                       can_use_checkpoint
                           ? "give the same value, or set override (this one) or use_checkpoint (the "
                             "checkpoint's) in OptimizerParamSchedulerConfig."
                           : "give the same decoupled_lr and overrides as before, or set override in "
                             "OptimizerParamSchedulerConfig.")),
      field(std::move(field)),
      here(std::move(here)),
      saved(std::move(saved)),
      can_use_checkpoint(can_use_checkpoint) {}

OptimizerParamSchedulerConfig constant_schedule(double lr, double weight_decay) {
  OptimizerParamSchedulerConfig config;
  config.max_lr = lr;
  config.lr_decay_steps = 1;
  config.lr_decay_style = LrDecayStyle::constant;
  config.start_wd = config.end_wd = weight_decay;
  return config;
}

OptimizerParamScheduler::OptimizerParamScheduler(optimizer::Optimizer& optimizer,
                                                 const OptimizerParamSchedulerConfig& config)
    : optimizer_(&optimizer), config_(completed(config, optimizer)) {
  check_config(config_);
  write_groups();
}

void OptimizerParamScheduler::step(std::int64_t increment) {
  check_user(increment >= 0, "the learning-rate schedule cannot move by ", increment,
             " steps; give 0 or more.");
  check_user(increment <= std::numeric_limits<std::int64_t>::max() - num_steps_,
             "the learning-rate schedule at position ", num_steps_, " cannot move by ", increment,
             " steps: the sum does not fit in 64 bits.");
  num_steps_ += increment;
  write_groups();
}

double OptimizerParamScheduler::get_lr(const optimizer::ParamGroup& group) const {
  return dispatch<targets::get_lr>(*this, group);
}

double OptimizerParamScheduler::get_wd() const {
  const auto& c = config_;
  if (c.wd_incr_style == WdIncrStyle::constant || num_steps_ > c.wd_incr_steps) return *c.end_wd;
  const double ratio = static_cast<double>(num_steps_) / static_cast<double>(c.wd_incr_steps);
  const double share = c.wd_incr_style == WdIncrStyle::linear ? ratio : half_cosine(1.0 - ratio);
  return *c.start_wd + share * (*c.end_wd - *c.start_wd);
}

void OptimizerParamScheduler::load_state(const OptimizerParamSchedulerState& saved) {
  check_user(saved.num_steps >= 0, "the checkpoint's learning-rate schedule is at position ", saved.num_steps,
             "; the checkpoint is damaged.");
  auto merged = config_;
  const auto take = [&](const char* name, auto OptimizerParamSchedulerConfig::*field) {
    auto& mine = merged.*field;
    const auto& theirs = saved.config.*field;
    if (mine == theirs || merged.override) return;
    if (!merged.use_checkpoint) throw ScheduleMismatch(name, shown(mine), shown(theirs));
    mine = theirs;
  };
  using Config = OptimizerParamSchedulerConfig;
  take("init_lr", &Config::init_lr);
  take("max_lr", &Config::max_lr);
  take("min_lr", &Config::min_lr);
  take("lr_warmup_steps", &Config::lr_warmup_steps);
  take("lr_decay_style", &Config::lr_decay_style);
  take("start_wd", &Config::start_wd);
  take("end_wd", &Config::end_wd);
  take("wd_incr_style", &Config::wd_incr_style);
  take("stablelm2_scheduler_config", &Config::stablelm2_scheduler_config);
  // Lengths count only where a style looks at them: a constant rate may go on for longer than it was first
  // told.
  const bool stages = merged.stablelm2_scheduler_config.has_value();
  if (stages || merged.lr_decay_style != LrDecayStyle::constant)
    take("lr_decay_steps", &Config::lr_decay_steps);
  if (merged.wd_incr_style != WdIncrStyle::constant) take("wd_incr_steps", &Config::wd_incr_steps);
  if (!stages && merged.lr_decay_style == LrDecayStyle::wsd) {
    take("lr_wsd_decay_steps", &Config::lr_wsd_decay_steps);
    take("lr_wsd_decay_style", &Config::lr_wsd_decay_style);
  }
  auto groups = optimizer_->param_groups;
  if (!saved.groups.empty() && !merged.override) take_groups(saved.groups, merged.use_checkpoint, groups);
  merged = completed(merged, *optimizer_);
  check_config(merged);
  optimizer_->param_groups = std::move(groups);
  config_ = merged;
  num_steps_ = saved.num_steps;
  write_groups();
}

OptimizerParamSchedulerState OptimizerParamScheduler::state() const {
  OptimizerParamSchedulerState state{num_steps_, config_, {}};
  for (const auto& group : optimizer_->param_groups)
    state.groups.push_back({group.max_lr, group.min_lr, group.wd_mult});
  return state;
}

std::string OptimizerParamScheduler::describe() const {
  const auto& c = config_;
  std::string all;
  const auto add = [&](const char* name, const auto& value) {
    all += concat(all.empty() ? "" : "\n", "schedule ", name, " ", shown(value));
  };
  add("init_lr", c.init_lr);
  add("max_lr", c.max_lr);
  add("min_lr", c.min_lr);
  add("lr_warmup_steps", c.lr_warmup_steps);
  add("lr_decay_steps", c.lr_decay_steps);
  add("lr_decay_style", c.lr_decay_style);
  add("start_wd", c.start_wd);
  add("end_wd", c.end_wd);
  add("wd_incr_steps", c.wd_incr_steps);
  add("wd_incr_style", c.wd_incr_style);
  add("lr_wsd_decay_steps", c.lr_wsd_decay_steps);
  add("lr_wsd_decay_style", c.lr_wsd_decay_style);
  add("stablelm2_scheduler_config", c.stablelm2_scheduler_config);
  for (std::size_t i = 0; i < optimizer_->param_groups.size(); ++i) {
    const auto& group = optimizer_->param_groups[i];
    all += concat("\ngroup ", i, " max_lr ", shown(group.max_lr), " min_lr ", shown(group.min_lr),
                  " wd_mult ", group.wd_mult);
  }
  return all;
}

void OptimizerParamScheduler::write_groups() {
  const double weight_decay = get_wd();
  for (auto& group : optimizer_->param_groups) {
    check_bounds(group.min_lr.value_or(*config_.min_lr), group.max_lr.value_or(*config_.max_lr),
                 "a parameter group");
    if (config_.lr_warmup_steps > 0 && group.max_lr)
      check_start(config_.init_lr, *group.max_lr, "a parameter group");
    group.lr = get_lr(group);
    group.weight_decay = weight_decay * group.wd_mult;
  }
}

}  // namespace mgfl::scheduler

namespace mgfl {

double implementation<targets::get_lr, vendors::original>::call(
    const scheduler::OptimizerParamScheduler& self, const optimizer::ParamGroup& group) {
  using scheduler::LrDecayStyle;
  const auto& c = self.config();
  check_user(
      !c.stablelm2_scheduler_config && c.lr_decay_style != LrDecayStyle::warmup_stable_decay,
      "the schedules of stablelm2_scheduler_config and of warmup-stable-decay are vendor default's; this "
      "build's override of OptimizerParamScheduler.get_lr has to hand them to it.");
  const double max_lr = group.max_lr.value_or(*c.max_lr), min_lr = group.min_lr.value_or(*c.min_lr);
  const std::int64_t t = self.num_steps();
  if (c.lr_warmup_steps > 0 && t <= c.lr_warmup_steps)
    return c.init_lr + (max_lr - c.init_lr) * static_cast<double>(t) / static_cast<double>(c.lr_warmup_steps);
  if (c.lr_decay_style == LrDecayStyle::constant) return max_lr;
  if (t > c.lr_decay_steps) return min_lr;
  if (c.lr_decay_style == LrDecayStyle::inverse_square_root) {
    const auto warmup = static_cast<double>(std::max<std::int64_t>(c.lr_warmup_steps, 1));
    const auto position = static_cast<double>(std::max<std::int64_t>(t, 1));
    return std::max(min_lr, max_lr * std::sqrt(warmup) / std::sqrt(position));
  }
  const double ratio =
      static_cast<double>(t - c.lr_warmup_steps) / static_cast<double>(c.lr_decay_steps - c.lr_warmup_steps);
  double share = 1.0 - ratio;
  if (c.lr_decay_style == LrDecayStyle::cosine) share = scheduler::half_cosine(ratio);
  if (c.lr_decay_style == LrDecayStyle::wsd) share = scheduler::wsd_share(c, t);
  return min_lr + share * (max_lr - min_lr);
}

}  // namespace mgfl
