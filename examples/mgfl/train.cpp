// `mgfl train`: trains a model on token data, evaluates, saves, and goes on where it stopped.
#include <filesystem>
#include <iostream>

#include <unistd.h>

#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/metrics.hpp"
#include "examples/mgfl/training_data.hpp"
#include "policies/checkpoint/training_checkpoint.hpp"
#include "policies/data/global_batches.hpp"
#include "policies/rl/losses.hpp"
#include "policies/training/dist_signal_handler.hpp"

namespace mgfl::program {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int stopped_by_signal = 3;

optimizer::OptimizerConfig optimizer_config(const TrainOptions& options) {
  optimizer::OptimizerConfig config;
  if (options.optimizer == "sgd") config.optimizer = optimizer::OptimizerKind::sgd;
  config.sgd_momentum = options.sgd_momentum;
  config.lr = options.lr;
  config.min_lr = options.min_lr;
  config.decoupled_lr = options.decoupled_lr;
  config.decoupled_min_lr = options.decoupled_min_lr;
  config.weight_decay = options.weight_decay;
  config.adam_beta1 = options.adam_beta1;
  config.adam_beta2 = options.adam_beta2;
  config.adam_eps = options.adam_eps;
  config.clip_grad = options.clip_grad;
  config.log_num_zeros_in_grad = true;
  config.loss_scale = options.loss_scale;
  config.initial_loss_scale = options.initial_loss_scale;
  config.min_loss_scale = options.min_loss_scale;
  config.loss_scale_window = options.loss_scale_window;
  config.hysteresis = options.hysteresis;
  return config;
}

/// UserError unless `place` is a folder that can be written to, or can be made one. Leaves nothing behind.
void check_can_become_folder(const char* flag, const std::filesystem::path& place) {
  namespace fs = std::filesystem;
  auto existing = fs::absolute(place);
  std::error_code error;
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  check_user(fs::is_directory(existing, error), flag, " ", place.string(), ": ", existing.string(),
             " is not a folder; choose another place.");
  // Permissions do not tell everything (read-only mounts, /proc), so try.
  const auto probe = existing / concat(".mgfl-probe-", getpid());
  error.clear();
  check_user(fs::create_directory(probe, error) && !error, flag, " ", place.string(),
             ": nothing can be made in ", existing.string(), " (",
             error ? error.message() : "its file system refuses", ").");
  fs::remove(probe, error);
}

/// UserError where `save` holds checkpoints of another run than the one that goes on: a newer one of those
/// would be taken for this run's, and --keep-last would remove it.
void check_no_foreign_checkpoints(const std::filesystem::path& save, const std::filesystem::path& loaded) {
  const auto found = checkpoint::complete_iterations(save);
  std::error_code ignored;
  check_user(found.empty() || (!loaded.empty() && std::filesystem::equivalent(save, loaded, ignored)),
             "--save ", save.string(), " holds checkpoints of another run (iteration ",
             found.empty() ? 0 : found.back(), "); choose another folder, or go on with --load ",
             save.string(), ".");
}

/// What the engine's head is trained to.
template <class E>
auto training_loss() {
  if constexpr (has_value_head<E>) {
    rl::ValueLoss loss;
    loss.config.cliprange_value.reset();
    return loss;
  } else {
    return SftLoss{};
  }
}

/// One training run on one rank.
template <class E, class C>
class Run {
 public:
  Run(const TrainOptions& options, Rank<C>& rank)
      : options_(options),
        rank_(rank),
        global_batch_size_(
            options.global_batch_size.value_or(options.batch.micro_batch_size * rank.data_parallel().size())),
        checkpoint_(options.model.load.empty() ? std::nullopt
                                               : std::optional(checkpoint::load(options.model.load))),
        engine_(source(), engine_config(options.batch, options.parallel), optimizer_config(options),
                scheduler_config(options, global_batch_size_), rank.context()) {}

  int operator()() {
    check_places();
    initialize(engine_, rank_, checkpoint_.has_value());
    if (checkpoint_) {
      if (!checkpoint_->note().empty()) log_warning(rank_.world.rank(), checkpoint_->note());
      try {
        position_ = checkpoint::TrainingCheckpoint::load(engine_, *checkpoint_);
      } catch (const scheduler::ScheduleMismatch& mismatch) {
        throw UserError(in_flags(mismatch));
      }
      checkpoint_.reset();
    }
    open_datasets();

    if (position_.iteration >= options_.train_iters && rank_.is_first())
      std::cerr << "mgfl: iteration " << position_.iteration << " is reached already; --train-iters "
                << options_.train_iters << " counts from the first one.\n";

    training::DistributedSignalHandler signals;
    MetricsWriter writer(rank_.is_first() ? options_.log_dir : "", position_.iteration);
    ProgressBar bar(std::cerr, stderr_is_terminal(), position_.iteration, options_.train_iters,
                    rank_.is_first() ? options_.log_interval : options_.train_iters + 1);
    if (evaluation_ && position_.iteration == 0) report_first_evaluation(writer);
    while (position_.iteration < options_.train_iters) {
      auto metrics = step();
      const bool last = position_.iteration == options_.train_iters;
      if (evaluation_ && (last || position_.iteration % options_.eval_interval == 0))
        metrics.eval_loss = evaluate();
      if (rank_.is_first()) {
        writer.write(metrics);
        bar.update(metrics);
      }
      const bool stopped = signals.signals_received(rank_.world);
      if (!options_.save.empty() &&
          (last || stopped || (options_.save_interval && position_.iteration % *options_.save_interval == 0)))
        engine_.save_checkpoint(options_.save, position_, options_.keep_last.value_or(0));
      if (stopped) {
        bar.finish();
        if (rank_.is_first())
          std::cerr << "mgfl: stopped by a signal after iteration " << position_.iteration
                    << (options_.save.empty() ? "; nothing was saved, as --save was not given.\n"
                                              : "; saved.\n");
        return stopped_by_signal;
      }
    }
    bar.finish();
    if (steps_made_ == 0 && steps_skipped_ > 0)
      log_warning(rank_.world.rank(), concat("all ", steps_skipped_,
                                             " iterations were skipped, so the model is as it was before; "
                                             "the loss scale is ",
                                             engine_.optimizer().loss_scale(), "."));
    if (!options_.save_hf.empty()) engine_.save_hf_pretrained(options_.save_hf);
    return 0;
  }

 private:
  /// What cannot be written is found out before the training, not after it.
  void check_places() {
    if (rank_.is_first())
      for (const auto& [flag, place] :
           {std::pair("--save", options_.save), std::pair("--save-hf", options_.save_hf),
            std::pair("--log-dir", options_.log_dir)})
        if (!place.empty()) check_can_become_folder(flag, place);
    if (rank_.is_first() && !options_.save.empty())
      check_no_foreign_checkpoints(options_.save, checkpoint_ ? checkpoint_->folder().parent_path() : "");
    rank_.world.barrier();
  }

  ModelConfig source() const {
    if (checkpoint_) return {checkpoint_->folder().string(), "", static_cast<std::uint64_t>(options_.seed)};
    return model_config(options_.model, options_.seed, rank_.world.rank());
  }

  void open_datasets() {
    const auto length = options_.seq_length.value_or(engine_.config().max_position_embeddings);
    const auto seed = static_cast<std::uint64_t>(options_.seed);
    dataset_.emplace(open_data(options_.data, length, seed, !options_.no_shuffle,
                               options_.train_iters * global_batch_size_, has_value_head<E>));
    batches_.emplace(batches_of(*dataset_, false));
    if (options_.eval_data.empty()) return;
    evaluation_.emplace(open_data(options_.eval_data, length, seed, false, {}, has_value_head<E>));
    evaluation_batches_.emplace(batches_of(*evaluation_, true));
  }

  data::GlobalBatchesConfig batches_of(const data::Dataset& dataset, bool evaluation) const {
    data::GlobalBatchesConfig config;
    config.dataset_size = dataset.size();
    config.global_batch_size = global_batch_size_;
    // Under a cap of tokens the whole batch is read, and dealt by what its sequences cost.
    if (!options_.batch.max_tokens_per_micro_batch) {
      config.micro_batch_size = options_.batch.micro_batch_size;
      config.data_parallel_rank = rank_.data_parallel().rank();
      config.data_parallel_size = rank_.data_parallel().size();
    }
    config.seed = static_cast<std::uint64_t>(options_.seed);
    config.shuffle = !evaluation && !options_.no_shuffle && !dataset.is_ordered();
    config.evaluation = evaluation;
    return config;
  }

  /// This rank's part of the global batch that comes after `consumed_samples`.
  Batch batch_after(std::int64_t consumed_samples, const data::Dataset& dataset,
                    data::GlobalBatches& batches) {
    const auto samples = batches.rank_samples(consumed_samples);
    const auto batch = read_batch(dataset, samples, engine_.config().vocab_size,
                                  {options_.seq_length, options_.batch.max_tokens_per_micro_batch});
    if (!options_.batch.max_tokens_per_micro_batch || rank_.data_parallel().size() == 1) return batch;
    TokenBudget budget;
    budget.max_tokens = *options_.batch.max_tokens_per_micro_batch;
    budget.data_parallel_size = rank_.data_parallel().size();
    budget.linear_cost = static_cast<double>(6 * engine_.config().hidden_size);
    return sequences_of_rank(batch, budget, rank_.data_parallel().rank());
  }

  StepMetrics step() {
    const auto start = Clock::now();
    StepMetrics metrics;
    const auto batch = batch_after(position_.consumed_samples, *dataset_, *batches_);
    const auto& groups = engine_.optimizer().param_groups;
    metrics.lr = groups[0].lr;
    if (options_.decoupled_lr) metrics.extra.emplace_back("decoupled_lr", groups[2].lr);
    engine_.optimizer_zero_grad();
    const auto result = engine_.forward_backward_batch(batch, training_loss<E>());
    const auto outcome = engine_.optimizer_step();
    position_.consumed_samples += global_batch_size_;
    ++position_.iteration;
    // The schedule counts samples; a skipped step does not move it.
    if (outcome.stepped) engine_.lr_scheduler_step(global_batch_size_);
    ++(outcome.stepped ? steps_made_ : steps_skipped_);

    metrics.iteration = position_.iteration;
    metrics.loss = result.loss();
    metrics.grad_norm = outcome.grad_norm;
    metrics.tokens = result.tokens;
    metrics.loss_scale = outcome.loss_scale;
    metrics.skipped = !outcome.stepped;
    if (outcome.num_zeros >= 0) metrics.num_zeros = static_cast<double>(outcome.num_zeros);
    metrics.step_seconds = std::chrono::duration<double>(Clock::now() - start).count();
    metrics.tokens_per_second = static_cast<double>(result.tokens) / metrics.step_seconds;
    metrics.peak_rss_bytes = peak_rss_bytes();
    return metrics;
  }

  /// Mean loss of the evaluation data's first --eval-iters batches, the same ones each time.
  double evaluate() {
    double sum = 0, count = 0;
    const auto batches = std::min(options_.eval_iters, evaluation_batches_->batches_per_epoch());
    for (std::int64_t i = 0; i < batches; ++i) {
      const auto batch = batch_after(i * global_batch_size_, *evaluation_, *evaluation_batches_);
      const auto result = engine_.forward_backward_batch(batch, training_loss<E>(), true);
      sum += result.metrics.front().sum;
      count += result.metrics.front().count;
    }
    return count > 0 ? sum / count : 0.0;
  }

  /// The loss before the first step, as iteration 0.
  void report_first_evaluation(MetricsWriter& writer) {
    StepMetrics metrics;
    constexpr auto none = std::numeric_limits<double>::quiet_NaN();
    metrics.loss = metrics.grad_norm = metrics.tokens_per_second = metrics.step_seconds = none;
    metrics.lr = none;
    metrics.loss_scale = engine_.optimizer().loss_scale();
    metrics.peak_rss_bytes = peak_rss_bytes();
    metrics.eval_loss = evaluate();
    if (rank_.is_first()) {
      writer.write(metrics);
      std::cerr << "iteration 0: eval loss " << *metrics.eval_loss << "\n";
    }
  }

  const TrainOptions& options_;
  Rank<C>& rank_;
  std::int64_t global_batch_size_;
  std::optional<checkpoint::Checkpoint> checkpoint_;  // until it is loaded
  E engine_;
  TrainingPosition position_;
  std::int64_t steps_made_ = 0, steps_skipped_ = 0;  // of this run
  std::optional<data::Dataset> dataset_, evaluation_;
  std::optional<data::GlobalBatches> batches_, evaluation_batches_;
};

}  // namespace

template <class C>
int run_train(const TrainOptions& options, Rank<C>& rank) {
  for (const auto& note : flags_without_effect(options, rank.data_parallel().size()))
    log_warning(rank.world.rank(), note);
  const auto run = [&](auto e) { return Run<typename decltype(e)::type, C>(options, rank)(); };
  if constexpr (!std::is_same_v<C, parallel::Self>)  // one process has nobody to share its state with
    if (options.use_distributed_optimizer)
      return with_engine<C, true>(options.precision, options.value_head, run);
  return with_engine<C>(options.precision, options.value_head, run);
}

template int run_train(const TrainOptions&, Rank<parallel::Self>&);
template int run_train(const TrainOptions&, Rank<parallel::Mpi>&);

}  // namespace mgfl::program
