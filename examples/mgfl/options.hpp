/// What a user of the mgfl program can ask for: one plain aggregate a command, filled from flags and a TOML
/// file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "policies/optimizer/grad_scaler.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"

namespace mgfl::program {

/// Where the weights come from: exactly one is set.
struct ModelSource {
  std::string load_hf;    // folder with config.json and *.safetensors
  std::string load;       // checkpoint of ours
  std::string init_from;  // config.json of a model with random weights
  bool operator==(const ModelSource&) const = default;
};

/// How the model lies on the ranks; Megatron's names and defaults.
struct ParallelOptions {
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t num_virtual_stages_per_pipeline_rank = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 1;
  bool sequence_parallel = false;
  std::string pipeline_schedule = "1f1b";
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<std::int64_t> decoder_first_pipeline_num_layers;
  std::optional<std::int64_t> decoder_last_pipeline_num_layers;
  std::optional<std::int64_t> microbatch_group_size_per_virtual_pipeline_stage;
  std::string cp_comm_type = "p2p";
  std::int64_t make_vocab_size_divisible_by = 1;
  bool operator==(const ParallelOptions&) const = default;
};

enum class Precision { fp32, bf16, fp16, fp64 };

/// At most one is set; none means fp32.
struct PrecisionOptions {
  bool bf16 = false;
  bool fp16 = false;
  bool fp64 = false;

  Precision kind() const {
    return bf16 ? Precision::bf16 : fp16 ? Precision::fp16 : fp64 ? Precision::fp64 : Precision::fp32;
  }
  bool operator==(const PrecisionOptions&) const = default;
};

/// How a rank's share of the batch is cut.
struct BatchOptions {
  std::int64_t micro_batch_size = 1;                       // sequences; not used where the next one is set
  std::optional<std::int64_t> max_tokens_per_micro_batch;  // packed up to this many tokens, never more
  bool operator==(const BatchOptions&) const = default;
};

/// What every command that runs a model takes.
struct RuntimeOptions {
  std::optional<std::int64_t> threads;  // per rank; not set: cores / ranks on this machine
  double timeout_seconds = 600;         // of every wait for another rank
  bool operator==(const RuntimeOptions&) const = default;
};

/// `mgfl score`
struct ScoreOptions {
  ModelSource model;
  ParallelOptions parallel;
  PrecisionOptions precision;
  BatchOptions batch;
  RuntimeOptions runtime;
  std::int64_t seed = 1234;  // of random weights
  std::string input;
  std::string output;
  std::string prefix;  // of the names in `input`
  bool logits = false;
  bool grads = false;
  double temperature = 1.0;
  bool value_head = false;
  std::optional<double> value_clip;
  bool record_routes = false;
  std::optional<std::string> replay_routes;
  bool operator==(const ScoreOptions&) const = default;
};

/// `mgfl generate`
struct GenerateOptions {
  ModelSource model;
  ParallelOptions parallel;
  PrecisionOptions precision;
  BatchOptions batch;
  RuntimeOptions runtime;
  std::int64_t seed = 1234;  // of sampling, and of random weights
  std::string input;
  std::string output;
  std::int64_t max_new_tokens = 0;
  std::optional<double> temperature;  // 0: greedy
  std::optional<std::int64_t> top_k;  // only the k likeliest tokens
  std::optional<double> top_p;        // only the likeliest tokens that together have this probability

  /// Takes the likeliest token each time, unless a sampling flag was given.
  bool greedy() const { return temperature ? *temperature == 0 : !top_k && !top_p; }
  bool operator==(const GenerateOptions&) const = default;
};

/// `mgfl train`
struct TrainOptions {
  ModelSource model;
  ParallelOptions parallel;
  PrecisionOptions precision;
  BatchOptions batch;
  RuntimeOptions runtime;
  std::int64_t seed = 1234;  // of random weights and of the data's order

  std::vector<std::string> data;
  bool no_shuffle = false;
  std::int64_t train_iters = 0;
  std::optional<std::int64_t> global_batch_size;  // not set: micro-batch size x data-parallel ranks
  std::optional<std::int64_t> seq_length;         // not set: the data's own, or the model's longest

  std::string optimizer = "adam";
  double lr = 0;
  double min_lr = 0;
  std::optional<double> decoupled_lr;  // of embedding and output layer
  std::optional<double> decoupled_min_lr;
  scheduler::LrDecayStyle lr_decay_style = scheduler::LrDecayStyle::linear;
  std::optional<std::int64_t> lr_decay_iters;  // not set: train_iters
  std::int64_t lr_warmup_iters = 0;
  double lr_warmup_init = 0;
  scheduler::WsdDecayStyle lr_wsd_decay_style = scheduler::WsdDecayStyle::exponential;
  std::optional<std::int64_t> lr_wsd_decay_iters;
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
  double weight_decay = 0.01;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;  // 0: no clipping
  bool use_distributed_optimizer = false;
  bool value_head = false;

  std::optional<double> loss_scale;  // constant; not set: dynamic
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;

  std::optional<std::string> recompute_granularity;
  std::optional<std::string> recompute_method;
  std::optional<std::int64_t> recompute_num_layers;
  double attention_dropout = 0;
  double hidden_dropout = 0;
  double moe_aux_loss_coeff = 0;
  double moe_z_loss_coeff = 0;

  std::string save;
  std::string save_hf;
  std::optional<std::int64_t> save_interval;  // not set: at the end only
  std::optional<std::int64_t> keep_last;      // not set: all of them
  bool async_save = false;
  std::vector<std::string> eval_data;
  std::int64_t eval_interval = 1000;
  std::int64_t eval_iters = 100;
  std::string log_dir;
  std::int64_t log_interval = 1;
  bool operator==(const TrainOptions&) const = default;
};

/// `mgfl overrides`
struct OverridesOptions {
  bool json = false;
  bool operator==(const OverridesOptions&) const = default;
};

/// `mgfl bench`
struct BenchOptions {
  ParallelOptions parallel;
  PrecisionOptions precision;
  RuntimeOptions runtime;
  std::int64_t seed = 1234;  // of random weights and tokens
  std::string config_json;
  std::int64_t micro_batch_size = 1;
  std::int64_t seq_length = 512;
  std::int64_t steps = 5;   // timed ones
  std::int64_t warmup = 1;  // steps before them
  bool operator==(const BenchOptions&) const = default;
};

/// The answer to --help, --version or --print-config: print `text` to stdout and end.
struct EarlyExit {
  int exit_status = 0;
  std::string text;
};

using Options =
    std::variant<TrainOptions, ScoreOptions, GenerateOptions, OverridesOptions, BenchOptions, EarlyExit>;

/// Reads a command line, `argv[0]` being the program's name. Flags win over the file of --config.
/// UserError with one sentence for whatever is wrong with either.
Options parse(int argc, const char* const* argv);

/// The schedule that a training run asks for, its lengths in samples as in Megatron's trainer.
scheduler::OptimizerParamSchedulerConfig scheduler_config(const TrainOptions& options,
                                                          std::int64_t global_batch_size);

/// What a schedule that is not the checkpoint's is told a user, with the flags in place of C++ fields.
std::string in_flags(const scheduler::ScheduleMismatch& mismatch);

/// The command and every flag with its value, a line each, but for --threads, which ranks may have unlike.
std::string described(const Options& options);

/// Flags that were set and change nothing beside the others, each with what would make it count.
std::vector<std::string> flags_without_effect(const TrainOptions& options, std::int64_t data_parallel_size);

/// The dynamic loss scale that a training run asks for.
optimizer::DynamicGradScalerConfig scaler_config(const TrainOptions& options);

}  // namespace mgfl::program
