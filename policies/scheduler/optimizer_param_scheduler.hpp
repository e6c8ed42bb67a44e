/// Megatron's schedule of learning rate and weight decay: warm-up, then one of several ways down.
// Mirrors megatron.core.optimizer_param_scheduler.OptimizerParamScheduler.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/policy/optimizer_base.hpp"

namespace mgfl::scheduler {

/// How the learning rate goes on after the warm-up. warmup_stable_decay is vendor default's, see
/// vendors/default/scheduler/get_lr.hpp; the others are Megatron's.
enum class LrDecayStyle { constant, linear, cosine, inverse_square_root, wsd, warmup_stable_decay };

/// How the last part of LrDecayStyle::wsd (warm-up, stable, decay) goes down.
enum class WsdDecayStyle { linear, cosine, exponential, minus_sqrt };

/// How the weight decay goes from its first to its last value.
enum class WdIncrStyle { constant, linear, cosine };

/// Megatron's spelling of a style, e.g. "inverse-square-root" or "WSD".
std::string_view to_string(LrDecayStyle style);
std::string_view to_string(WsdDecayStyle style);
std::string_view to_string(WdIncrStyle style);

/// The style that Megatron spells so; UserError with the known names otherwise.
LrDecayStyle lr_decay_style(std::string_view name);
WsdDecayStyle wsd_decay_style(std::string_view name);
WdIncrStyle wd_incr_style(std::string_view name);

/// The stages of StableLM 2 (arXiv 2402.17834), which vendor default computes: cosine, then 1 / sqrt, then
/// linear. Its rates are absolute, the same for every group; its positions count from 0, as those of the
/// schedule.
struct StableLm2SchedulerConfig {
  double cosine_max_lr = 0;
  std::int64_t cosine_period_samples = 0;  // of a whole turn, down to a tenth of cosine_max_lr and up again
  std::int64_t cosine_samples = 0;         // where the cosine ends
  double alpha = 0, beta = 0;              // alpha / sqrt(position / global_batch_size + beta)
  std::int64_t global_batch_size = 1;
  std::int64_t rsqrt_samples = 0;  // where that ends
  std::int64_t decay_samples =
      0;  // then down to min_lr in so many; 0: to 0, in all that lr_decay_steps leaves
  bool operator==(const StableLm2SchedulerConfig&) const = default;
};
std::ostream& operator<<(std::ostream& out, const StableLm2SchedulerConfig& config);

/// Lengths count whatever `step` adds up: samples in the mgfl program, as in Megatron's trainer. What is left
/// open is OptimizerConfig's: max_lr its lr, min_lr its min_lr, start_wd and end_wd its weight_decay.
struct OptimizerParamSchedulerConfig {
  double init_lr = 0;                    // at position 0 of a warm-up
  std::optional<double> max_lr, min_lr;  // a group's own replace these two
  std::int64_t lr_warmup_steps = 0;      // 0: position 0 has max_lr
  // Warm-up included; beyond it the learning rate is min_lr (constant: max_lr).
  std::int64_t lr_decay_steps = 0;
  LrDecayStyle lr_decay_style = LrDecayStyle::linear;
  std::optional<double> start_wd, end_wd;
  std::int64_t wd_incr_steps = 0;
  WdIncrStyle wd_incr_style = WdIncrStyle::constant;
  std::int64_t lr_wsd_decay_steps = 0;  // the part of lr_decay_steps in which WSD goes down
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::exponential;
  std::optional<StableLm2SchedulerConfig> stablelm2_scheduler_config;  // in place of lr_decay_style
  // What load_state does where a saved value differs from the one above: keep the saved one, keep the one
  // above, or (neither set) refuse.
  bool use_checkpoint = false;
  bool override = false;
};

/// One learning rate and weight decay for all steps.
OptimizerParamSchedulerConfig constant_schedule(double lr, double weight_decay = 0);

/// A parameter group's own rates and decay.
struct GroupRates {
  std::optional<double> max_lr, min_lr;
  double wd_mult = 1.0;
};

/// What a checkpoint keeps of a schedule.
struct OptimizerParamSchedulerState {
  std::int64_t num_steps = 0;
  OptimizerParamSchedulerConfig config;
  std::vector<GroupRates> groups = {};  // empty in checkpoints of before they were kept
};

/// A saved schedule that is not this run's, with the field's name and both values, so that a caller can name
/// its own setting in place of the field.
struct ScheduleMismatch : UserError {
  ScheduleMismatch(std::string field, std::string here, std::string saved, bool can_use_checkpoint = true);
  std::string field, here, saved;
  bool can_use_checkpoint;  // whether the saved value can be taken: other parameter groups cannot
};

/// Writes learning rate and weight decay of every parameter group. Before the first `step` the values of
/// position 0 hold, so that a warm-up from init_lr 0 makes a first update with learning rate 0, as in
/// Megatron.
class OptimizerParamScheduler {
 public:
  using config_type = OptimizerParamSchedulerConfig;

  /// Borrows `optimizer`, which must outlive the scheduler, and writes the values of position 0 into its
  /// groups. UserError for lengths or rates that describe no schedule, naming the values.
  OptimizerParamScheduler(optimizer::Optimizer& optimizer, const OptimizerParamSchedulerConfig& config);

  /// Moves on by `increment` (>= 0) and writes the values of the new position into the groups.
  void step(std::int64_t increment);

  /// Learning rate of a group at the present position: an overridable method, see get_lr_decl.hpp.
  double get_lr(const optimizer::ParamGroup& group) const;

  /// Weight decay at the present position, before a group's wd_mult.
  double get_wd() const;

  std::int64_t num_steps() const { return num_steps_; }
  /// With nothing left open.
  const OptimizerParamSchedulerConfig& config() const { return config_; }

  OptimizerParamSchedulerState state() const;

  /// All settings, that of the groups included, as a text for ranks to compare.
  std::string describe() const;

  /// Takes a saved position (never added to the present one) and writes its values into the groups.
  /// ScheduleMismatch where a saved setting differs and neither `use_checkpoint` nor `override` is set;
  /// nothing changes then.
  void load_state(const OptimizerParamSchedulerState& saved);

 private:
  void write_groups();

  optimizer::Optimizer* optimizer_;
  OptimizerParamSchedulerConfig config_;
  std::int64_t num_steps_ = 0;
};

}  // namespace mgfl::scheduler
