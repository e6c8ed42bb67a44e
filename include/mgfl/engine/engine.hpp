/// Engine<P, O, S, Model>: one rank's model, optimizer and schedule, with no decision left to the run.
/// Mirrors verl's MegatronEngine.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/base/function_ref.hpp"
#include "mgfl/base/log.hpp"
#include "mgfl/engine/batch.hpp"
#include "mgfl/engine/config.hpp"
#include "mgfl/engine/engine_steps_decl.hpp"
#include "mgfl/engine/loss.hpp"
#include "mgfl/engine/metrics.hpp"
#include "mgfl/engine/mini_batches.hpp"
#include "mgfl/engine/modes.hpp"
#include "mgfl/engine/outputs.hpp"
#include "mgfl/engine/padded_batch.hpp"
#include "mgfl/engine/settings.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/override/environment.hpp"
#include "mgfl/parallel/agreement.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "mgfl/parallel/placement.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"
#include "mgfl/parallel/whole_values.hpp"
#include "mgfl/policy/optimizer_policy.hpp"
#include "mgfl/policy/parallel_policy.hpp"
#include "mgfl/pipeline/schedules.hpp"
#include "mgfl/policy/scheduler_policy.hpp"
#include "mgfl/policy/static_model.hpp"
#include "mgfl/tensor/autograd.hpp"
#include "mgfl/tensor/checksum.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl {

namespace model {
class Decoder;
class ValueModel;
}  // namespace model

/// Stands for no loss in a forward-only call: outputs alone.
struct NoLoss {};

static_assert(family_is_checked<targets::build_tf_config>);
static_assert(family_is_checked<targets::build_megatron_module>);
static_assert(family_is_checked<targets::maybe_enable_fused_kernels>);
static_assert(family_is_checked<targets::build_optimizer>);
static_assert(family_is_checked<targets::build_lr_scheduler>);

/// One rank's engine; each step of initialize() is an overridable target.
template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S,
          class Model = model::Decoder>
class Engine {
 public:
  using communicator_type = typename P::communicator_type;
  using context_type = typename P::context_type;
  using optimizer_policy = O;
  using precision = typename O::precision;
  using group_list_type = parallel::GroupList<communicator_type>;
  using optimizer_type = typename O::template optimizer_type<communicator_type>;
  using scheduler_type = S;
  using scheduler_config_type = scheduler::config_of_t<S>;
  static constexpr bool scheduler_builds_from_config = scheduler::BuildsFromConfig<S>;
  using model_type = Model;
  using bridge_type = typename Model::bridge_type;
  using output_type = typename Model::output_type;
  using loss_input_type = typename Model::loss_input_type;
  using result_type = BatchResultOf<output_type>;
  using train_result_type = TrainResultOf<output_type>;
  using LossClosure = function_ref<LossTerms(const loss_input_type&)>;
  using mode_guard_type = ModeGuard<Engine>;

  /// Borrows the context's groups, which must outlive the engine. Nothing is allocated before initialize().
  /// UserError where the context's extents are not the policy's static ones.
  Engine(ModelConfig model_config, EngineConfig engine_config, optimizer::OptimizerConfig optimizer_config,
         scheduler_config_type scheduler_config, context_type context)
      : model_config_(std::move(model_config)),
        engine_config_(engine_config),
        optimizer_config_(optimizer_config),
        scheduler_config_(std::move(scheduler_config)),
        context_(std::move(context)) {
    parallel::check_static_extents<P>(context_.extents);
  }
  Engine(const Engine&) = delete;  // parts point at one another
  Engine& operator=(const Engine&) = delete;

  /// Builds everything, in the seed's order. UserError, on every rank alike, where the ranks were built with
  /// different overrides, or start from different weights or optimizer settings. Collective.
  void initialize() {
    check_environment(context_.world->rank());
    parallel::check_same_overrides(*context_.world);
    check_user(engine_config_.device == c10::DeviceType::CPU, "EngineConfig::device is \"",
               c10::DeviceTypeName(engine_config_.device, true),
               "\", but engines of this version compute on the CPU; leave it at that.");
    NoGradGuard no_grad;
    _build_tf_config();
    check_built(bridge_, "_build_tf_config");
    if constexpr (requires { layout_sizes(bridge_->config()); })
      parallel::check_model_fits<P>(layout_sizes(bridge_->config()), context_.extents);
    _build_megatron_module();
    check_built(model_, "_build_megatron_module");
    check_built(buffer_, "_build_megatron_module");
    _maybe_enable_fused_kernels();
    if (!engine_config_.forward_only) {
      _build_optimizer();
      check_built(optimizer_, "_build_optimizer");
      _build_lr_scheduler();
      check_built(scheduler_, "_build_lr_scheduler");
    }
    check_replicas();
    to(c10::DeviceType::CPU, is_param_offload_enabled(), is_optimizer_offload_enabled(), true);
  }

  // ---- modes and memory

  bool is_param_offload_enabled() const { return engine_config_.param_offload; }
  bool is_optimizer_offload_enabled() const { return engine_config_.optimizer_offload; }

  /// The engine in train or eval mode while the guard lives, see ModeGuard.
  [[nodiscard]] mode_guard_type train_mode(const ModeOptions& options = {}) {
    check_trains("train_mode");
    return mode_guard_type(*this, Mode::train, options);
  }
  [[nodiscard]] mode_guard_type eval_mode(const ModeOptions& options = {}) {
    return mode_guard_type(*this, Mode::eval, options);
  }

  /// Moves weights, optimizer state and gradients to a kind of device; gradients only with the weights, and
  /// with their contents. UserError where this process has no such device.
  void to(c10::DeviceType device, bool model = true, bool optimizer = true, bool grad = true) {
    NoGradGuard no_grad;
    check_initialized("to");
    check_device(device);
    if (model) {
      O::move_weights(*buffer_, device);
      if (grad && optimizer_) {
        O::move_grads(*buffer_, device);
        model_->move_grads(device);
      }
    }
    if (optimizer && optimizer_) optimizer_->to(device);
  }

  // ---- batches

  /// Forward (and backward, unless forward_only) of this rank's batch, validated once and cut into as many
  /// micro-batches on every data-parallel rank. Loss sums, counts and gradients are reduced over the
  /// data-parallel group; the one division happens here, so that gradients are those of the mean. Outputs are
  /// in the batch's order. Collective. `loss_function`: a TokenWeightedLoss, or any callable
  /// LossTerms(const loss_input_type&); NoLoss with forward_only.
  template <class Loss>
  result_type forward_backward_batch(const Batch& batch, Loss&& loss_function, bool forward_only = false) {
    using L = std::remove_cvref_t<Loss>;
    if constexpr (std::is_same_v<L, NoLoss>) {
      check_run(forward_only, "forward_backward_batch: a backward pass needs a loss.");
      return run_batch(batch, {}, nullptr, true);
    } else if constexpr (TokenWeightedLoss<L> && has_log_probs) {
      auto weights = [&](const Batch& part) { return loss_function.token_weights(part); };
      return run_batch(batch, TokenWeightClosure(weights), nullptr, forward_only);
    } else {
      static_assert(std::is_invocable_r_v<LossTerms, L&, const loss_input_type&>,
                    "mgfl: a loss takes (const LossInput&) where the engine has a language-model head and "
                    "(const ValueLossInput&) where it has a value head, and returns LossTerms.");
      if constexpr (std::is_invocable_r_v<LossTerms, L&, const loss_input_type&>) {
        LossClosure closure(loss_function);
        return run_batch(batch, {}, &closure, forward_only);
      } else {
        return {};  // the sentence above is enough
      }
    }
  }

  /// The same for sequences padded to one length; outputs are [sequences, length], 0 at padding.
  template <class Loss>
  result_type forward_backward_batch(const PaddedBatch& batch, Loss&& loss_function,
                                     bool forward_only = false) {
    const auto packed = pack(batch);
    auto result = forward_backward_batch(packed.batch, std::forward<Loss>(loss_function), forward_only);
    for (auto* part : result.parts())
      if (part->defined()) *part = packed.unpack(*part);
    return result;
  }

  /// One optimizer step on a batch: zero the gradients, forward and backward, step. Moves no schedule.
  /// Collective.
  template <class AnyBatch, class Loss>
  train_result_type train_batch(const AnyBatch& batch, Loss&& loss_function) {
    static_assert(!std::is_same_v<std::remove_cvref_t<Loss>, NoLoss>, "mgfl: train_batch needs a loss.");
    check_trains("train_batch");
    optimizer_zero_grad();
    train_result_type result;
    static_cast<result_type&>(result) = forward_backward_batch(batch, std::forward<Loss>(loss_function));
    result.lr = optimizer_->param_groups.front().lr;
    result.step = optimizer_step();
    return result;
  }

  /// Outputs (and a loss, where one is given) without gradients. Collective.
  template <class AnyBatch, class Loss = NoLoss>
  result_type infer_batch(const AnyBatch& batch, Loss&& loss_function = {}) {
    return forward_backward_batch(batch, std::forward<Loss>(loss_function), true);
  }

  /// Optimizer steps on mini-batches of this rank's batch, epoch by epoch, and one step of the schedule at
  /// the end if any of them was made. Mini-batches do not depend on the number of ranks, see
  /// mini_batches_of_epoch. Collective.
  template <class Loss>
  std::vector<train_result_type> train_mini_batch(const Batch& batch, Loss&& loss_function,
                                                  const MiniBatchConfig& config) {
    check_trains("train_mini_batch");
    const auto whole = checked(batch);
    check_same_mini_batches(config);
    const auto units = units_of_all_ranks(whole);
    std::vector<train_result_type> results;
    bool stepped = false;
    for (std::int64_t epoch = 0; epoch < std::max<std::int64_t>(config.epochs, 1); ++epoch)
      for (const auto& sequences : mini_batches_of_epoch(units, config, epoch, get_data_parallel_rank())) {
        results.push_back(train_batch(select_sequences(whole, sequences).batch, loss_function));
        stepped = stepped || results.back().step.stepped;
      }
    if (stepped) lr_scheduler_step();
    return results;
  }

  /// Logits [tokens, vocab] of this rank's batch, micro-batch by micro-batch. Collective.
  template <class M = Model>
  Tensor logits(const Batch& batch) requires requires(M& model, typename M::workspace_type& workspace) {
    model.logits(workspace);
  }
  {
    NoGradGuard no_grad;
    check_initialized("logits");
    check_run(!running_, "logits: called from within a loss closure, whose micro-batch is still in flight.");
    const auto whole = checked(batch);
    check_same_batch(whole);
    auto out = empty({whole.num_tokens(), config().vocab_size}, precision::model_dtype);
    for (const auto& part : micro_batches(whole, true)) {
      if (part.batch.num_tokens() == 0) continue;
      model_->forward(part.batch, workspace_, false);
      out.index_copy_(0, part.places, model_->logits(workspace_));
    }
    return out;
  }

  // ---- steps

  void optimizer_zero_grad() {
    check_trains("optimizer_zero_grad");
    optimizer_->zero_grad();
    model_->zero_grads();
    gradients_ = Gradients::zero;
  }

  /// One step on the gradients of the last batch, which it uses up. A skipped step is a result: nothing but
  /// the loss scale has changed then. Collective.
  StepResult optimizer_step() {
    NoGradGuard no_grad;
    check_trains("optimizer_step");
    check_run(gradients_ == Gradients::finished,
              "optimizer_step: there are no gradients of a finished batch; call optimizer_zero_grad() and "
              "forward_backward_batch first, for each step.");
    gradients_ = Gradients::used;
    if (empty_batch_) return {false, false, 0.0, -1, optimizer_->loss_scale()};
    return optimizer_->step();
  }

  /// Moves the schedule on and returns the new learning rate of group 0; `increment` is in the schedule's
  /// unit. Call it after a step that was not skipped.
  double lr_scheduler_step(std::int64_t increment = 1) {
    check_trains("lr_scheduler_step");
    if constexpr (scheduler::StepsByIncrement<S>)
      scheduler_->step(increment);
    else
      for (std::int64_t i = 0; i < increment; ++i) scheduler_->step();
    return optimizer_->param_groups.front().lr;
  }

  // ---- weights

  /// Every weight in the model's dtype under its Hugging Face name, for an inference engine: a range that
  /// makes one tensor at a time, and the adapter's configuration where the weights are an adapter's, which
  /// this version has none of. `base_sync_done` is for adapters. The range borrows the engine's weights; the
  /// ranks of a tensor-parallel group walk it together.
  auto get_per_tensor_param([[maybe_unused]] bool base_sync_done = false) {
    check_initialized("get_per_tensor_param");
    auto range = bridge_->export_hf_weights(buffer_->params, std::nullopt, tensor_parallel_group());
    return PerTensorParams<decltype(range)>{std::move(range), std::nullopt};
  }

  /// Writes a folder that transformers loads, from main weights where there are any. Names, shapes and dtypes
  /// are the source's; fp64 writes F64. The first rank of the job writes. Collective.
  void save_hf_pretrained(const std::string& folder) {
    check_initialized("save_hf_pretrained");
    constexpr bool exact = precision::model_dtype == c10::ScalarType::Double;
    const auto dtype = exact ? std::optional(precision::model_dtype) : std::nullopt;
    const auto save = [&](std::span<const ParamRef> params, function_ref<void(std::size_t)> gather) {
      if (context_.world->rank() == 0)
        bridge_->save_hf_pretrained(folder, params, gather, dtype);
      else
        for (std::size_t param = 0; param < params.size(); ++param) gather(param);
    };
    if (optimizer_) {
      auto main = optimizer_->whole_main_params();
      save(main.params(), [&](std::size_t param) { optimizer_->gather(main, param); });
    } else {
      parallel::WholeValues weights(buffer_->params, tensor_parallel_group());
      save(weights.params(), [&](std::size_t param) {
        if (get_data_parallel_rank() == 0) weights.gather(param);
      });
    }
    context_.world->barrier();
  }

  /// Saves the whole training state under `local_path`, and keeps the newest `max_ckpt_to_keep` checkpoints
  /// there (0: all). A crash loses nothing older. Collective.
  void save_checkpoint(const std::string& local_path, const TrainingPosition& position,
                       std::int64_t max_ckpt_to_keep = 0) {
    check_trains("save_checkpoint");
    Model::checkpoint_type::save(*this, local_path, position, max_ckpt_to_keep);
  }

  /// Goes on from the newest checkpoint under `local_path`. UserError where there is none, or where it does
  /// not fit this engine. Collective.
  TrainingPosition load_checkpoint(const std::string& local_path) {
    check_trains("load_checkpoint");
    return Model::checkpoint_type::load(*this, local_path);
  }

  // ---- who and what this is

  /// Whether this rank returns the outputs of its data-parallel replica.
  bool is_mp_src_rank_with_outputs() const {
    const auto& place = context_.place;
    return place.tp == 0 && place.cp == 0 && place.pp == context_.extents.pp - 1;
  }

  int get_data_parallel_rank() const { return context_.data_parallel->rank(); }
  int get_data_parallel_size() const { return context_.data_parallel->size(); }
  communicator_type& get_data_parallel_group() { return *context_.data_parallel; }
  communicator_type& get_model_parallel_group() { return *context_.model_parallel; }

  /// The ranks that share the model's layers.
  parallel::TensorParallelGroup tensor_parallel_group() const {
    return parallel::TensorParallelGroup(*context_.tensor_parallel);
  }

  /// How they share them.
  parallel::ModelParallel model_parallel() const {
    return {tensor_parallel_group(), engine_config_.sequence_parallel,
            engine_config_.make_vocab_size_divisible_by};
  }

  const EngineConfig& engine_config() const { return engine_config_; }
  const context_type& context() const { return context_; }

  // The engine's parts. RunError before initialize(), and of a forward_only engine's optimizer and schedule.
  const auto& config() const { return made(model_, "model").config(); }
  Model& module() { return made(model_, "model"); }
  bridge_type& bridge() { return made(bridge_, "bridge"); }
  optimizer_type& optimizer() { return made(optimizer_, "optimizer"); }
  scheduler_type& lr_scheduler() { return made(scheduler_, "schedule"); }
  auto& param_buffer() { return made(buffer_, "parameter buffer"); }

 private:
  using TokenWeightClosure = std::optional<function_ref<TokenWeights(const Batch&)>>;
  static constexpr bool has_log_probs = requires(output_type & output) { output.log_probs; };
  static constexpr bool has_logits = requires(loss_input_type & input) { input.logits; };

  template <class, class>
  friend struct implementation;  // overrides of the steps see what the steps see
  friend mode_guard_type;

  void _build_tf_config() { dispatch_family<targets::build_tf_config, Engine>(*this); }
  void _build_megatron_module() { dispatch_family<targets::build_megatron_module, Engine>(*this); }
  void _maybe_enable_fused_kernels() { dispatch_family<targets::maybe_enable_fused_kernels, Engine>(*this); }
  void _build_optimizer() { dispatch_family<targets::build_optimizer, Engine>(*this); }
  void _build_lr_scheduler() { dispatch_family<targets::build_lr_scheduler, Engine>(*this); }

  /// Prints the warning that every rank has, once; UserError on every rank where they do not all have the
  /// same. Collective.
  void warn_where_all_ranks_do(const std::string& note) {
    parallel::check_same_kernels(*context_.world, note);
    if (!note.empty()) log_warning(context_.world->rank(), note);
  }

  template <class Part>
  static void check_built(const Part& part, const char* step) {
    check_run(
        part.has_value(), "initialize: ", step,
        " has not built its part of the engine; an override of that step must do what the original does.");
  }

  /// UserError, on every rank alike, unless all ranks have the same settings, and start from the same
  /// weights: all of them where ranks are replicas of one another, those that each holds whole where they
  /// share the layers.
  void check_replicas() {
    auto settings = settings_text(engine_config_, optimizer_config_);
    if (model_config_.local_path.empty()) settings += concat("\nseed ", model_config_.seed);
    if constexpr (requires { scheduler_->describe(); }) {
      if (scheduler_) settings += concat("\n", scheduler_->describe());
    } else if constexpr (requires { scheduler_config_.max_steps; }) {
      settings += concat("\nmax_steps ", scheduler_config_.max_steps, "\nschedule's min_lr ",
                         scheduler_config_.min_lr);
    }
    const auto check_same = [](auto& group, const std::string& text) {
      parallel::check_same(group, text, parallel::throw_different_replicas);
    };
    check_same(*context_.world, settings);
    if (get_data_parallel_size() > 1)  // else nobody would look at it
      check_same(*context_.data_parallel, weights_text(checksum(buffer_->values)));
    if (context_.tensor_parallel->size() == 1) return;
    std::uint64_t whole = 0;
    for (const auto& param : buffer_->params)
      if (parallel::is_whole(*param.desc)) whole = whole * 31 + checksum(*param.value);
    check_same(*context_.tensor_parallel, weights_text(whole));
  }

  static std::string weights_text(std::uint64_t sum) {
    return concat("weights ", parallel::detail::hexadecimal(sum));
  }

  /// UserError, on every rank of the tensor-parallel group alike, unless all of them were given this batch:
  /// their layers work on the same tokens.
  void check_same_batch(const Batch& batch) {
    if (context_.tensor_parallel->size() == 1) return;
    parallel::check_same(*context_.tensor_parallel, describe(batch), parallel::throw_different_batches);
  }

  void check_same_mini_batches(const MiniBatchConfig& config) {
    parallel::check_same(
        *context_.world,
        concat("mini_batch_size ", config.mini_batch_size, "\nnum_mini_batches ", config.num_mini_batches,
               "\nepochs ", config.epochs, "\nshuffle ", config.shuffle, "\nseed ", config.seed),
        parallel::throw_different_replicas);
  }

  void check_initialized(const char* what) const {
    check_run(model_.has_value(), what, ": call initialize() first.");
  }

  void check_trains(const char* what) const {
    check_initialized(what);
    check_run(optimizer_.has_value(), what, ": this engine is forward_only; it holds no optimizer.");
  }

  template <class Part>
  static auto& made(Part& part, const char* name) {
    check_run(
        part.has_value(), "engine: there is no ", name,
        "; call initialize() first, and mind that a forward_only engine has no optimizer and no schedule.");
    return *part;
  }

  void enter(Mode mode, const ModeOptions& options) {
    check_run(!mode_, mode == Mode::train ? "train_mode" : "eval_mode",
              ": the engine is in a mode already; leave that first.");
    move_for(mode, options, engine_config_.device);
    mode_ = mode;
  }

  void leave(Mode mode, const ModeOptions& options, bool by_exception) noexcept {
    if (mode == Mode::train && (options.zero_grad_on_exit || by_exception)) optimizer_zero_grad();
    move_for(mode, options, c10::DeviceType::CPU);
    mode_.reset();
  }

  void move_for(Mode mode, const ModeOptions& options, c10::DeviceType device) {
    if (options.disable_auto_offload) return;
    to(device, is_param_offload_enabled(), mode == Mode::train && is_optimizer_offload_enabled(),
       mode == Mode::train);
  }

  Batch checked(const Batch& batch) const { return validated(batch, config().vocab_size, has_log_probs); }

  std::vector<MicroBatch> micro_batches(const Batch& batch, bool forward_only) {
    const auto first_positive = [](std::int64_t a, std::int64_t b) { return a > 0 ? a : b; };
    const auto& own = engine_config_;
    MicroBatchLimits limits;
    limits.micro_batch_size = batch.options.micro_batch_size.value_or(
        first_positive(forward_only ? own.infer_micro_batch_size : 0, own.micro_batch_size));
    limits.max_tokens_per_micro_batch = batch.options.max_tokens_per_micro_batch.value_or(
        batch.options.micro_batch_size  // asked for by sequences
            ? 0
            : first_positive(forward_only ? own.infer_max_tokens_per_micro_batch : 0,
                             own.max_tokens_per_micro_batch));
    limits.linear_cost = 6 * config().hidden_size;
    auto sequences = micro_batch_sequences(batch, limits, 1);
    const auto most = all_reduce_count(static_cast<std::int64_t>(sequences.size()), ReduceOp::max);
    if (most > static_cast<std::int64_t>(sequences.size()))
      sequences = micro_batch_sequences(batch, limits, most);
    std::vector<MicroBatch> parts;
    for (const auto& part : sequences) parts.push_back(select_sequences(batch, part));
    return parts;
  }

  Tensor units_of_all_ranks(const Batch& batch) {
    const auto longest = all_reduce_count(batch.num_sequences(), ReduceOp::max);
    auto all = zeros({get_data_parallel_size(), longest}, at::kLong);
    context_.data_parallel->all_gather(units_of(batch, longest), all);
    return all;
  }

  /// What every micro-batch of one call shares.
  struct Pass {
    TokenWeightClosure token_weights;
    const LossClosure* closure;
    HeadRequest request;
    bool fused;
    bool training;
    double backward_scale;  // multiplies every gradient until finalize_model_grads divides
    result_type& result;
  };

  result_type run_batch(const Batch& given, TokenWeightClosure token_weights, const LossClosure* closure,
                        bool forward_only) {
    NoGradGuard no_grad;
    check_initialized("forward_backward_batch");
    if (!forward_only) check_trains("forward_backward_batch");
    check_run(!running_,
              "forward_backward_batch: called from within its own loss closure, whose micro-batch "
              "is still in flight; compute what the loss needs before, and pass it as a field.");
    check_run(forward_only || gradients_ == Gradients::zero,
              "forward_backward_batch: gradients of an earlier batch are still there; call "
              "optimizer_zero_grad() first. Give "
              "all micro-batches of a step in one batch, so that they share one division.");
    const auto batch = checked(given);
    check_same_batch(batch);
    const Running running(running_);
    const HeadRequest request{
        batch.options.calculate_entropy.value_or(engine_config_.calculate_entropy),
        batch.options.calculate_sum_pi_squared.value_or(engine_config_.calculate_sum_pi_squared),
        batch.options.calculate_mean_log_probs.value_or(engine_config_.calculate_mean_log_probs)};
    result_type result;
    result.tokens = all_reduce_count(batch.num_tokens(), ReduceOp::sum);
    // Keeps 16-bit gradients of a sum over many tokens in range; a power of two, so it changes no bit
    // elsewhere.
    const double normalizer =
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(result.tokens, 1)));
    const double loss_scale = forward_only ? 1.0 : optimizer_->loss_scale();
    const Pass pass{token_weights, closure,
                    request,       batch.options.use_fused_kernels.value_or(engine_config_.use_fused_kernels),
                    !forward_only, loss_scale / normalizer,
                    result};

    const auto parts = micro_batches(batch, forward_only);
    result.num_micro_batches = static_cast<std::int64_t>(parts.size());
    if (!forward_only) gradients_ = Gradients::unfinished;
    constexpr auto forward_backward_func =
        pipeline::get_forward_backward_func<P::pipeline_model_parallel_size>();
    forward_backward_func(
        result.num_micro_batches,
        [&](std::int64_t i) { forward_step(parts[static_cast<std::size_t>(i)], batch, pass); },
        [&](std::int64_t i) {
          if (parts[static_cast<std::size_t>(i)].batch.num_tokens() > 0) model_->backward(workspace_);
        },
        forward_only);
    fill_outputs(result, batch.num_tokens(), request);
    reduce_metrics(result.metrics, *context_.data_parallel);
    if (!forward_only) {
      finalize_model_grads(result, normalizer);
      gradients_ = Gradients::finished;
    }
    return result;
  }

  /// One micro-batch through model, head and loss; the head's input gradient waits in the workspace. A
  /// micro-batch without tokens only keeps the ranks in step.
  void forward_step(const MicroBatch& part, const Batch& batch, const Pass& pass) {
    if (part.batch.num_tokens() == 0) return;
    model_->forward(part.batch, workspace_, pass.training);
    auto output = head_step(part.batch, pass);
    const auto parts = output.parts(), whole = pass.result.parts();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i]->defined()) continue;
      if (!whole[i]->defined()) *whole[i] = zeros({batch.num_tokens()}, precision::main_dtype);
      whole[i]->index_copy_(0, part.places, parts[i]->detach());
    }
  }

  output_type head_step(const Batch& part, const Pass& pass) {
    if constexpr (has_logits)
      if (!pass.fused) return logits_step(part, pass);
    if constexpr (has_log_probs)
      if (pass.token_weights) return token_weights_step(part, pass);
    auto output = model_->head_forward(workspace_, pass.request);
    if (pass.closure) closure_step(part, pass, output);
    return output;
  }

  /// The gradient is known beforehand, so one pass over the logits is enough.
  // A template, as the next one, so that an explicit instantiation of a critic's engine passes it over.
  template <class Output = output_type>
  Output token_weights_step(const Batch& part, const Pass& pass) {
    auto weights = (*pass.token_weights)(part);
    weights.weight = weights.weight.to(precision::main_dtype);
    auto output = pass.training ? model_->head_forward_backward(
                                      workspace_, weights.weight.mul(-pass.backward_scale), pass.request)
                                : model_->head_forward(workspace_, pass.request);
    add_metrics(pass.result.metrics, {weighted_sum(weights, output.log_probs)});
    return output;
  }

  static LossTerm weighted_sum(const TokenWeights& weights, const Tensor& log_probs) {
    return {weights.name, zeros({1}, at::kDouble).fill_(-ordered_sum(weights.weight.mul(log_probs.detach()))),
            weights.count};
  }

  /// The loss closure on leaves; its gradients go back into the head.
  void closure_step(const Batch& part, const Pass& pass, const output_type& output) {
    auto recorded = output;
    std::vector<Tensor> leaves;
    const auto total = [&] {
      GradGuard grad;
      for (auto* values : recorded.parts())
        if (values->defined()) {
          leaves.push_back(make_leaf(*values));
          *values = leaves.back().clone();  // the closure may write on it
        }
      const auto own = part.separate();  // the closure may write on it, and the backward pass reads ours
      return loss_of(call(*pass.closure, loss_input_type(recorded, own)), pass);
    }();
    if (!pass.training) return;
    auto grads = gradients(total, leaves);
    output_type d_output;
    std::size_t next = 0;
    const auto parts = recorded.parts(), d_parts = d_output.parts();
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (parts[i]->defined()) *d_parts[i] = grads[next++].mul(pass.backward_scale);
    model_->head_backward(workspace_, d_output);
  }

  /// The same on whole logits, from which every output follows.
  template <class Output = output_type>
  Output logits_step(const Batch& part, const Pass& pass) {
    auto logits = make_leaf(model_->head_logits(workspace_));
    GradGuard grad;
    auto output = Model::output_of_logits(logits, part, pass.request);
    auto result = output;
    for (auto* values : result.parts())
      if (values->defined()) *values = values->detach().clone();  // the closure may write on its own
    Tensor total;
    if (pass.token_weights) {
      const auto weights = (*pass.token_weights)(part);
      total = weights.weight.to(precision::main_dtype).mul(output.log_probs).sum().neg();
      add_metrics(pass.result.metrics, {weighted_sum(weights, output.log_probs)});
    } else if (pass.closure) {
      const auto own = part.separate();
      loss_input_type input(output, own);
      input.logits = logits;
      total = loss_of(call(*pass.closure, input), pass);
    }
    if (!pass.training) return result;
    const auto d_logits = gradients(total, {logits}).front().mul(pass.backward_scale);
    NoGradGuard no_grad;
    model_->head_logits_backward(workspace_, d_logits);
    return result;
  }

  /// The closure's terms. What LibTorch has to say of it becomes a UserError.
  static LossTerms call(const LossClosure& closure, const loss_input_type& input) {
    try {
      return closure(input);
    } catch (const c10::Error& error) {
      throw UserError(concat("loss closure: ", error.what_without_backtrace(),
                             "\nOutputs beside the first are there where asked for (calculate_entropy, "
                             "calculate_sum_pi_squared, calculate_mean_log_probs), logits without "
                             "use_fused_kernels."));
    }
  }

  /// Adds the closure's terms to the result's metrics; the sum that enters the gradient.
  Tensor loss_of(const LossTerms& terms, const Pass& pass) {
    add_metrics(pass.result.metrics, terms);  // which looks at each sum
    const auto total = total_loss(terms);
    check_user(
        !pass.training || total.sum.defined(),
        "loss closure: no term enters the gradient; mark one with is_loss, or call with forward_only.");
    check_user(!pass.training || total.sum.requires_grad() || total.count == 0,
               "loss closure: the loss does not depend on the model's outputs, so there is nothing to learn; "
               "compute it from the closure's argument, without detach().");
    return total.sum;
  }

  /// Outputs of a rank without tokens are there, and empty.
  void fill_outputs(result_type& result, std::int64_t tokens, const HeadRequest& request) {
    const auto fill = [&](Tensor& values) {
      if (!values.defined()) values = zeros({tokens}, precision::main_dtype);
    };
    fill(*result.parts().front());
    if constexpr (has_log_probs) {
      if (request.entropy) fill(result.entropy);
      if (request.sum_pi_squared) fill(result.sum_pi_squared);
      if (request.mean_log_probs) fill(result.mean_log_probs);
    }
  }

  std::int64_t all_reduce_count(std::int64_t count, ReduceOp op) {
    auto total = zeros({1}, at::kLong).fill_(count);
    context_.data_parallel->all_reduce(total, op);
    return total.template item<std::int64_t>();
  }

  /// Mirrors megatron's finalize_model_grads: tied weights, sums over tensor-parallel and then over
  /// data-parallel ranks, the one division.
  void finalize_model_grads(const result_type& result, double normalizer) {
    model_->finalize_grads();
    optimizer_->reduce_grads();
    // One pipeline stage holds both uses of a tied weight: there is no group to sum over.
    model_->allreduce_embedding_grad(group_list_type{});
    const Metric* loss = nullptr;
    for (const auto& metric : result.metrics)
      if (metric.is_loss && loss == nullptr) loss = &metric;
    empty_batch_ = loss == nullptr || !(loss->count > 0);
    const auto grads = optimizer_->main_grads();
    if (empty_batch_) {
      log_warning(
          context_.world->rank(),
          "no token of this batch counts in the loss: its gradients are zero and its step is skipped.");
      grads.zero_();
      return;
    }
    if (!std::isfinite(result.loss())) {
      // Its gradient may be finite all the same, where a clamp stood between: let the step be skipped.
      log_warning(context_.world->rank(), concat("the loss is ", result.loss(), "; its step is skipped."));
      grads.fill_(std::numeric_limits<double>::quiet_NaN());
      return;
    }
    grads.mul_(loss->aggregation == MetricAggregation::mean ? normalizer / loss->count : normalizer);
  }

  /// What the gradient buffer holds.
  enum class Gradients { zero, unfinished, finished, used };

  /// Marks a batch in flight.
  class Running {
   public:
    explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
    ~Running() { flag_ = false; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    bool& flag_;
  };

  ModelConfig model_config_;
  EngineConfig engine_config_;
  optimizer::OptimizerConfig optimizer_config_;
  scheduler_config_type scheduler_config_;
  context_type context_;

  std::optional<bridge_type> bridge_;
  std::optional<Model> model_;
  std::optional<typename O::buffer_type> buffer_;
  std::optional<optimizer_type> optimizer_;
  std::optional<S> scheduler_;
  typename Model::workspace_type workspace_;
  std::optional<Mode> mode_;
  Gradients gradients_ = Gradients::zero;
  bool running_ = false;
  bool empty_batch_ = false;  // the last batch had nothing to learn from
};

/// verl's names. The base engine, for a model of one's own.
template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S,
          class Model = model::Decoder>
using MegatronEngine = Engine<P, O, S, Model>;

/// The engine with a language-model head: log-probabilities and entropies of tokens.
template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S,
          class Model = model::Decoder>
using MegatronEngineWithLMHead = Engine<P, O, S, Model>;

/// The engine with a value head: a critic's value of each token.
template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S,
          class Model = model::ValueModel>
using MegatronEngineWithValueHead = Engine<P, O, S, Model>;

}  // namespace mgfl
