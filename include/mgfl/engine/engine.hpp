/// Engine<P, O, S, Model>: one rank's model, optimizer and schedule, with no decision left to the run.
/// Mirrors verl's MegatronEngine.
#pragma once

#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/base/function_ref.hpp"
#include "mgfl/base/log.hpp"
#include "mgfl/engine/batch.hpp"
#include "mgfl/engine/engine_steps_decl.hpp"
#include "mgfl/engine/loss.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/override/environment.hpp"
#include "mgfl/parallel/agreement.hpp"
#include "mgfl/parallel/group_list.hpp"
#include "mgfl/policy/optimizer_policy.hpp"
#include "mgfl/policy/parallel_policy.hpp"
#include "mgfl/policy/scheduler_policy.hpp"
#include "mgfl/tensor/autograd.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl {

namespace model {
class Decoder;
}

/// Where the model comes from.
struct ModelConfig {
  std::string local_path;   // Hugging Face folder with weights
  std::string config_path;  // or: config.json for random weights from `seed`
  std::uint64_t seed = 1234;
};

struct EngineConfig {
  std::int64_t micro_batch_size = 1;            // sequences
  std::int64_t max_tokens_per_micro_batch = 0;  // > 0: pack whole sequences up to this many tokens instead
  bool forward_only = false;                    // no gradients, no optimizer: a reference model
  bool calculate_entropy = false;               // per-token entropy in outputs
};

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
  using LossClosure = function_ref<LossTerms(const LossInput&)>;

  /// Borrows the context's groups, which must outlive the engine. Nothing is allocated before initialize().
  Engine(ModelConfig model_config, EngineConfig engine_config, optimizer::OptimizerConfig optimizer_config,
         scheduler_config_type scheduler_config, context_type context)
      : model_config_(std::move(model_config)),
        engine_config_(engine_config),
        optimizer_config_(optimizer_config),
        scheduler_config_(std::move(scheduler_config)),
        context_(std::move(context)) {}

  /// Builds everything, in the seed's order. UserError, on every rank alike, where the ranks were built with
  /// different overrides. Collective.
  void initialize() {
    check_environment(context_.world->rank());
    parallel::check_same_overrides(*context_.world);
    NoGradGuard no_grad;
    _build_tf_config();
    _build_megatron_module();
    _maybe_enable_fused_kernels();
    if (!engine_config_.forward_only) {
      _build_optimizer();
      _build_lr_scheduler();
    }
  }

  /// Forward (and backward, unless forward_only) of this rank's batch. Loss sums, counts and gradients are
  /// reduced over the data-parallel group; the one division happens here, so that gradients are those of the
  /// mean. Collective. `loss_function`: a TokenWeightedLoss, or any callable LossTerms(const LossInput&).
  template <class Loss>
  BatchResult forward_backward_batch(const Batch& batch, Loss&& loss_function, bool forward_only = false) {
    if constexpr (TokenWeightedLoss<std::remove_cvref_t<Loss>>) {
      auto weights = [&](const Batch& part) { return loss_function.token_weights(part); };
      return run_batch(batch, TokenWeightClosure(weights), nullptr, forward_only);
    } else {
      LossClosure closure(loss_function);
      return run_batch(batch, {}, &closure, forward_only);
    }
  }

  void optimizer_zero_grad() {
    optimizer_->zero_grad();
    model_->zero_grads();
    grads_are_zero_ = true;
  }

  /// A skipped step is a result: nothing but the loss scale has changed then. Collective.
  StepResult optimizer_step() {
    NoGradGuard no_grad;
    if (empty_batch_) return {false, false, 0.0, -1, optimizer_->loss_scale()};
    return optimizer_->step();
  }

  /// Moves the schedule on; `increment` is in the schedule's unit. Call it after a step that was not skipped.
  void lr_scheduler_step(std::int64_t increment = 1) {
    if constexpr (scheduler::StepsByIncrement<S>)
      scheduler_->step(increment);
    else
      for (std::int64_t i = 0; i < increment; ++i) scheduler_->step();
  }

  /// Logits [tokens, vocab] of a batch, micro-batch by micro-batch.
  Tensor logits(const Batch& batch) {
    NoGradGuard no_grad;
    validate(batch, config().vocab_size);
    auto out = empty({batch.num_tokens(), config().vocab_size}, precision::model_dtype);
    for (const auto& part : micro_batches(batch)) {
      model_->forward(part, workspace_, false);
      out.narrow(0, part.first_token, part.batch.num_tokens()).copy_(model_->logits(workspace_));
    }
    return out;
  }

  /// Writes a folder that transformers loads, from main weights where there are any. Names, shapes and dtypes
  /// are the source's; fp64 writes F64. The first rank of the job writes. Collective.
  void export_hf_weights(const std::string& folder) {
    constexpr bool exact = precision::model_dtype == c10::ScalarType::Double;
    const auto dtype = exact ? std::optional(precision::model_dtype) : std::nullopt;
    if (context_.world->rank() == 0) {
      if (optimizer_)
        bridge_->save_hf_pretrained(folder, typename O::main_params_type(*buffer_).params, dtype);
      else
        bridge_->save_hf_pretrained(folder, buffer_->params, dtype);
    }
    context_.world->barrier();
  }

  const auto& config() const { return model_->config(); }
  const context_type& context() const { return context_; }
  Model& module() { return *model_; }
  bridge_type& bridge() { return *bridge_; }
  optimizer_type& optimizer() { return *optimizer_; }
  scheduler_type& lr_scheduler() { return *scheduler_; }
  const EngineConfig& engine_config() const { return engine_config_; }
  auto& param_buffer() { return *buffer_; }

  int get_data_parallel_rank() const { return context_.data_parallel->rank(); }
  int get_data_parallel_size() const { return context_.data_parallel->size(); }

 private:
  using TokenWeightClosure = std::optional<function_ref<TokenWeights(const Batch&)>>;

  template <class, class>
  friend struct implementation;  // overrides of the steps see what the steps see

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

  std::vector<MicroBatch> micro_batches(const Batch& batch) const {
    return split_micro_batches(batch, engine_config_.micro_batch_size,
                               engine_config_.max_tokens_per_micro_batch);
  }

  /// What every micro-batch of one call shares.
  struct Pass {
    TokenWeightClosure token_weights;
    const LossClosure* closure;
    bool training;
    double backward_scale;  // multiplies every gradient until finalize_model_grads divides
    BatchResult& result;
  };

  BatchResult run_batch(const Batch& batch, TokenWeightClosure token_weights, const LossClosure* closure,
                        bool forward_only) {
    NoGradGuard no_grad;
    check_run(forward_only || optimizer_.has_value(), "forward_backward_batch: this engine is forward_only.");
    check_run(forward_only || grads_are_zero_,
              "forward_backward_batch: gradients of an earlier batch are still there; call "
              "optimizer_zero_grad() first. Give "
              "all micro-batches of a step in one batch, so that they share one division.");
    validate(batch, config().vocab_size);
    BatchResult result;
    const auto dtype = precision::main_dtype;
    result.log_probs = zeros({batch.num_tokens()}, dtype);
    if (engine_config_.calculate_entropy) result.entropy = zeros({batch.num_tokens()}, dtype);
    result.tokens = all_reduce_count(batch.num_tokens());
    // Keeps 16-bit gradients of a sum over many tokens in range; a power of two, so it changes no bit
    // elsewhere.
    const double normalizer =
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(result.tokens, 1)));
    const double loss_scale = forward_only ? 1.0 : optimizer_->loss_scale();
    const Pass pass{token_weights, closure, !forward_only, loss_scale / normalizer, result};
    if (batch.num_tokens() > 0)
      for (const auto& part : micro_batches(batch)) forward_step(part, pass);
    reduce_metrics(result);
    if (!forward_only) {
      finalize_model_grads(result, normalizer);
      grads_are_zero_ = false;
    }
    return result;
  }

  void forward_step(const MicroBatch& part, const Pass& pass) {
    model_->forward(part, workspace_, pass.training);
    HeadOutput output;
    if (pass.token_weights) {
      auto weights = (*pass.token_weights)(part.batch);
      weights.weight = weights.weight.to(precision::main_dtype);
      output = pass.training
                   ? model_->head_forward_backward(workspace_, weights.weight.mul(-pass.backward_scale),
                                                   engine_config_.calculate_entropy)
                   : model_->head_forward(workspace_, engine_config_.calculate_entropy);
      add_metric(pass.result, weights.name, -ordered_sum(weights.weight.mul(output.log_probs)),
                 weights.count);
    } else {
      output = model_->head_forward(workspace_, engine_config_.calculate_entropy);
      closure_step(part, pass, output);
    }
    const auto place = [&](Tensor& whole) {
      return whole.narrow(0, part.first_token, part.batch.num_tokens());
    };
    place(pass.result.log_probs).copy_(output.log_probs);
    if (output.entropy.defined()) place(pass.result.entropy).copy_(output.entropy);
    if (pass.training) model_->backward(workspace_);
  }

  /// The loss closure on leaves; its gradients go back into the head.
  void closure_step(const MicroBatch& part, const Pass& pass, const HeadOutput& output) {
    std::vector<Tensor> leaves{make_leaf(output.log_probs)};
    if (output.entropy.defined()) leaves.push_back(make_leaf(output.entropy));
    LossTerms terms;
    Tensor total;
    std::optional<double> count;
    {
      GradGuard grad;
      terms = (*pass.closure)({leaves[0], leaves.size() > 1 ? leaves[1] : Tensor(), part.batch});
      for (const auto& term : terms) {
        if (!term.is_loss) continue;
        check_user(!count || *count == term.count, "loss closure: terms that enter the gradient have counts ",
                   count.value_or(0), " and ", term.count,
                   " in one micro-batch; give them one count and put the ratio into the sum.");
        count = term.count;
        total = total.defined() ? total.add(term.sum) : term.sum;
      }
    }
    for (const auto& term : terms)
      add_metric(pass.result, term.name, ordered_sum(term.sum.reshape({1})), term.count);
    if (!pass.training) return;
    check_user(
        total.defined(),
        "loss closure: no term enters the gradient; mark one with is_loss, or call with forward_only.");
    const auto grads = gradients(total, leaves);
    model_->head_backward(workspace_, grads[0].mul(pass.backward_scale),
                          grads.size() > 1 ? grads[1].mul(pass.backward_scale) : Tensor());
  }

  static void add_metric(BatchResult& result, const std::string& name, double sum, double count) {
    for (auto& metric : result.metrics) {
      if (metric.name != name) continue;
      metric.sum += sum;
      metric.count += count;
      return;
    }
    result.metrics.push_back({name, sum, count});
  }

  std::int64_t all_reduce_count(std::int64_t count) {
    auto total = zeros({1}, at::kLong).fill_(count);
    context_.data_parallel->all_reduce(total, ReduceOp::sum);
    return total.template item<std::int64_t>();
  }

  /// Sums and counts over the data-parallel group. A rank without tokens joins with zeros.
  void reduce_metrics(BatchResult& result) {
    const auto terms = [&] {
      auto most = zeros({1}, at::kLong).fill_(static_cast<std::int64_t>(result.metrics.size()));
      context_.data_parallel->all_reduce(most, ReduceOp::max);
      return most.template item<std::int64_t>();
    }();
    auto packed = zeros({terms, 2}, at::kDouble);
    auto* values = packed.template data_ptr<double>();
    for (std::size_t i = 0; i < result.metrics.size(); ++i) {
      values[2 * i] = result.metrics[i].sum;
      values[2 * i + 1] = result.metrics[i].count;
    }
    context_.data_parallel->all_reduce(packed, ReduceOp::sum);
    result.metrics.resize(static_cast<std::size_t>(terms));
    for (std::size_t i = 0; i < result.metrics.size(); ++i) {
      result.metrics[i].sum = values[2 * i];
      result.metrics[i].count = values[2 * i + 1];
    }
  }

  /// Mirrors megatron's finalize_model_grads: tied weights, reduction over data-parallel ranks, the one
  /// division.
  void finalize_model_grads(const BatchResult& result, double normalizer) {
    model_->finalize_tied_grads();
    auto& grads = optimizer_->main_grads();
    context_.data_parallel->all_reduce(grads, ReduceOp::sum);
    // One pipeline stage holds both uses of a tied weight: there is no group to sum over.
    model_->allreduce_embedding_grad(group_list_type{});
    const double count = result.metrics.empty() ? 0.0 : result.metrics.front().count;
    empty_batch_ = !(count > 0);
    if (empty_batch_) {
      log_warning(context_.world->rank(), "no token of this batch counts in the loss; the step is skipped.");
      grads.zero_();
      return;
    }
    grads.mul_(normalizer / count);
  }

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
  bool grads_are_zero_ = true;
  bool empty_batch_ = false;  // the last batch had nothing to learn from
};

/// The engine with a language-model head: log-probabilities and entropies of tokens.
template <parallel::ParallelPolicy P, optimizer::OptimizerPolicy O, scheduler::SchedulerPolicy S,
          class Model = model::Decoder>
using MegatronEngineWithLMHead = Engine<P, O, S, Model>;

}  // namespace mgfl
