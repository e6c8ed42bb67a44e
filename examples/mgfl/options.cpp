#include "examples/mgfl/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "examples/mgfl/config_file.hpp"
#include "examples/mgfl/flag_table.hpp"
#include "mgfl/base/edit_distance.hpp"
#include "mgfl/base/error.hpp"

namespace mgfl::program {
namespace {

// ---- what this version lacks ----

struct Missing {
  const char* flag;
  const char* supported;
};

/// Flags that are read, shown and accepted at their default, and refused otherwise. Delete a line once it
/// works.
constexpr Missing not_in_this_version[] = {
    {"pipeline-model-parallel-size", "this version has no pipeline stages, so keep it at 1"},
    {"num-virtual-stages-per-pipeline-rank", "this version has no pipeline stages, so keep it at 1"},
    {"context-parallel-size", "this version has no context parallelism, so keep it at 1"},
    {"expert-model-parallel-size", "this version runs dense models only, so keep it at 1"},
    {"expert-tensor-parallel-size", "this version runs dense models only, so keep it at 1"},
    {"pipeline-schedule", "this version has no pipeline stages, so leave it at 1f1b"},
    {"pipeline-model-parallel-layout", "this version has no pipeline stages"},
    {"decoder-first-pipeline-num-layers", "this version has no pipeline stages"},
    {"decoder-last-pipeline-num-layers", "this version has no pipeline stages"},
    {"microbatch-group-size-per-virtual-pipeline-stage", "this version has no pipeline stages"},
    {"cp-comm-type", "this version has no context parallelism, so leave it at p2p"},
    {"record-routes", "this version runs dense models only, which have no routes"},
    {"replay-routes", "this version runs dense models only, which have no routes"},
    {"recompute-granularity", "this version keeps all activations"},
    {"recompute-method", "this version keeps all activations"},
    {"recompute-num-layers", "this version keeps all activations"},
    {"attention-dropout", "this version trains without dropout, so keep it at 0"},
    {"hidden-dropout", "this version trains without dropout, so keep it at 0"},
    {"moe-aux-loss-coeff", "this version runs dense models only, so keep it at 0"},
    {"moe-z-loss-coeff", "this version runs dense models only, so keep it at 0"},
    {"async-save", "this version saves while training waits"},
};

const Missing* missing(const std::string& flag) {
  const auto* found = std::find_if(std::begin(not_in_this_version), std::end(not_in_this_version),
                                   [&](const Missing& entry) { return flag == entry.flag; });
  return found == std::end(not_in_this_version) ? nullptr : found;
}

// ---- the flags of each command ----

void add_model(Table& t, ModelSource& m) {
  t.group("Model (one of them)");
  t.text("load-hf", m.load_hf, "DIR", "Hugging Face folder: config.json and *.safetensors");
  t.text("load", m.load, "DIR", "checkpoint that mgfl train --save wrote");
  t.text("init-from", m.init_from, "CONFIG.JSON",
         "random weights for this Hugging Face config.json, see --seed");
  t.exclusive.push_back({"load-hf", "load", "init-from"});
  t.required.push_back({"load-hf", "load", "init-from"});
}

void add_parallel(Table& t, ParallelOptions& p) {
  t.group("Layout (data parallel = ranks / (tensor x pipeline x context))");
  t.integer("tensor-model-parallel-size", p.tensor_model_parallel_size, "N", "ranks that share each layer", 1,
            1 << 20);
  t.integer("pipeline-model-parallel-size", p.pipeline_model_parallel_size, "N", "pipeline stages", 1);
  t.integer("num-virtual-stages-per-pipeline-rank", p.num_virtual_stages_per_pipeline_rank, "N",
            "model chunks on each pipeline stage", 1);
  t.integer("context-parallel-size", p.context_parallel_size, "N", "ranks that share each sequence", 1);
  t.integer("expert-model-parallel-size", p.expert_model_parallel_size, "N", "ranks that share the experts",
            1);
  t.integer("expert-tensor-parallel-size", p.expert_tensor_parallel_size, "N", "ranks that share each expert",
            1);
  t.toggle("sequence-parallel", p.sequence_parallel,
           "split norms and residuals over the tensor-parallel ranks");
  t.choice("pipeline-schedule", p.pipeline_schedule, "order of forward and backward passes",
           {"1f1b", "interleaved", "gpipe", "zero-bubble"});
  t.text("pipeline-model-parallel-layout", p.pipeline_model_parallel_layout, "LAYOUT",
         "layers of each stage by hand");
  t.integer("decoder-first-pipeline-num-layers", p.decoder_first_pipeline_num_layers, "N",
            "layers of the first stage", 1);
  t.integer("decoder-last-pipeline-num-layers", p.decoder_last_pipeline_num_layers, "N",
            "layers of the last stage", 1);
  t.integer("microbatch-group-size-per-virtual-pipeline-stage",
            p.microbatch_group_size_per_virtual_pipeline_stage, "N",
            "micro-batches that a chunk runs in a row", 1);
  t.choice("cp-comm-type", p.cp_comm_type, "how context-parallel ranks exchange keys and values",
           {"p2p", "all_gather", "a2a"});
  t.integer("make-vocab-size-divisible-by", p.make_vocab_size_divisible_by, "N",
            "pad the vocabulary to a multiple of this x the tensor-parallel size", 1);
}

void add_precision(Table& t, PrecisionOptions& p) {
  t.group("Precision (default: fp32)");
  t.toggle("bf16", p.bf16, "bf16 weights and activations, fp32 main weights and gradients");
  t.toggle("fp16", p.fp16,
           "fp16 weights and activations, fp32 main weights and gradients, with a loss scale");
  t.toggle("fp64", p.fp64, "everything in fp64, for exact comparisons; results are written as F64");
  t.exclusive.push_back({"bf16", "fp16", "fp64"});
}

void add_batch(Table& t, BatchOptions& b) {
  t.group("Batch");
  t.integer("micro-batch-size", b.micro_batch_size, "N", "sequences that a rank runs at once", 1);
  t.integer("max-tokens-per-micro-batch", b.max_tokens_per_micro_batch, "N",
            "in place of --micro-batch-size: pack sequences up to this many tokens, never more", 1);
  t.exclusive.push_back({"micro-batch-size", "max-tokens-per-micro-batch"});
}

void add_runtime(Table& t, RuntimeOptions& r, std::int64_t& seed, const char* seed_help) {
  t.group("Running");
  t.integer("threads", r.threads, "N", "threads of each rank (default: cores / ranks on this machine)", 1,
            65536);
  t.real("timeout-seconds", r.timeout_seconds, "SECONDS", "longest wait for another rank", positive);
  t.integer("seed", seed, "N", seed_help, 0, std::numeric_limits<std::int64_t>::max());
}

void add_files(Table& t, std::string& input, std::string& output, const char* input_help,
               const char* output_help) {
  t.group("Files");
  t.text("input", input, "FILE.safetensors", input_help);
  t.text("output", output, "FILE.safetensors", output_help);
  t.required.push_back({"input"});
  t.required.push_back({"output"});
}

Table table(ScoreOptions& o) {
  Table t(
      "score",
      "Log-probabilities, entropy, loss and, on demand, logits and gradients of given tokens; or a critic's "
      "values.");
  add_model(t, o.model);
  add_files(t, o.input, o.output,
            "input_ids, packed with cu_seqlens or with attention_mask; labels, loss_mask, position_ids; for "
            "--value-head returns, old_values",
            "gets log_probs, entropy, token_loss, mean_loss, num_tokens, in the order of the input");
  t.text("prefix", o.prefix, "TEXT", "what the names in --input begin with (default: nothing)");
  t.group("Scoring");
  t.toggle("logits", o.logits, "write logits too");
  t.toggle("grads", o.grads, "write grad.NAME of mean_loss for every weight, and grad_norm");
  t.real("temperature", o.temperature, "T", "divides the logits before the softmax; at least 1e-8",
         Range{1e-8, infinity});
  t.toggle("value-head", o.value_head,
           "of a critic: writes values; where --input has returns, mean_loss is 0.5 (value - return)^2");
  t.real("value-clip", o.value_clip, "C",
         "that loss with values clipped to old_values +- C, where it is larger", positive);
  t.dependent = {{"value-clip", "value-head"}};
  t.toggle("record-routes", o.record_routes, "write the experts that each token took");
  t.text("replay-routes", o.replay_routes, "NAME", "use the experts recorded in this tensor of --input");
  t.exclusive.push_back({"record-routes", "replay-routes"});
  add_batch(t, o.batch);
  add_precision(t, o.precision);
  add_parallel(t, o.parallel);
  add_runtime(t, o.runtime, o.seed, "of random weights");
  return t;
}

Table table(GenerateOptions& o) {
  Table t("generate", "Continues given tokens, greedily unless a sampling flag is given.");
  add_model(t, o.model);
  add_files(t, o.input, o.output, "input_ids, packed with cu_seqlens or padded with attention_mask",
            "gets output_ids with cu_seqlens");
  t.group("Sampling");
  t.integer("max-new-tokens", o.max_new_tokens, "N", "longest continuation, in tokens", 1);
  t.required.push_back({"max-new-tokens"});
  t.real("temperature", o.temperature, "T", "divides the logits; 0 is greedy (default: 1 where sampling)",
         not_negative);
  t.integer("top-k", o.top_k, "K", "sample from the K likeliest tokens (default: all)", 1);
  t.real("top-p", o.top_p, "P",
         "sample from the likeliest tokens of together this probability (default: all)", {0, 1, true});
  add_batch(t, o.batch);
  add_precision(t, o.precision);
  add_parallel(t, o.parallel);
  add_runtime(t, o.runtime, o.seed, "of sampling, and of random weights");
  return t;
}

Table table(TrainOptions& o) {
  Table t("train", "Trains a model, from a Hugging Face folder, a checkpoint or random weights.");
  add_model(t, o.model);
  t.group("Data");
  t.list("data", o.data, "PATH",
         "PREFIX of .bin/.idx, blends as WEIGHT PREFIX WEIGHT PREFIX, F.safetensors, or F.jsonl");
  t.required.push_back({"data"});
  t.toggle("no-shuffle", o.no_shuffle, "keep the order of the files");
  t.integer("seq-length", o.seq_length, "N",
            "tokens of a sample (default: the data's own, or the model's longest)", 1);
  t.group("Length and batch");
  t.integer("train-iters", o.train_iters, "N", "iterations in all, those before a restart included", 1);
  t.required.push_back({"train-iters"});
  t.integer("global-batch-size", o.global_batch_size, "N",
            "samples an iteration (default: micro-batch size x data-parallel ranks)", 1);
  add_batch(t, o.batch);
  t.group("Learning rate (the schedule counts samples)");
  t.real("lr", o.lr, "LR", "highest learning rate", not_negative);
  t.required.push_back({"lr"});
  t.real("min-lr", o.min_lr, "LR", "lowest learning rate after the warm-up", not_negative);
  t.real("decoupled-lr", o.decoupled_lr, "LR", "highest rate of embedding and output layer (default: --lr)",
         not_negative);
  t.real("decoupled-min-lr", o.decoupled_min_lr, "LR",
         "lowest rate of embedding and output layer (default: --min-lr)", not_negative);
  t.choice("lr-decay-style", o.lr_decay_style, "from --lr to --min-lr",
           {"constant", "linear", "cosine", "inverse-square-root", "WSD", "warmup-stable-decay"});
  t.integer("lr-decay-iters", o.lr_decay_iters, "N",
            "iterations until --min-lr, warm-up included (default: --train-iters)", 1);
  t.integer("lr-warmup-iters", o.lr_warmup_iters, "N",
            "iterations of the linear warm-up; the first iteration uses --lr-warmup-init", 0);
  t.real("lr-warmup-init", o.lr_warmup_init, "LR", "learning rate at the start of the warm-up", not_negative);
  t.choice("lr-wsd-decay-style", o.lr_wsd_decay_style, "last part of WSD",
           {"linear", "cosine", "exponential", "minus_sqrt"});
  t.integer("lr-wsd-decay-iters", o.lr_wsd_decay_iters, "N",
            "iterations of the last part of WSD, which needs it", 1);
  t.toggle("override-opt-param-scheduler", o.override_opt_param_scheduler,
           "where the schedule differs from the checkpoint's: use the flags'");
  t.toggle("use-checkpoint-opt-param-scheduler", o.use_checkpoint_opt_param_scheduler,
           "where the schedule differs from the checkpoint's: use the checkpoint's");
  t.exclusive.push_back({"override-opt-param-scheduler", "use-checkpoint-opt-param-scheduler"});
  t.group("Optimizer");
  t.choice("optimizer", o.optimizer, "adam is AdamW: decoupled weight decay; sgd adds it to the gradient",
           {"adam", "sgd"});
  t.real("weight-decay", o.weight_decay, "WD", "of matrices and embeddings; norms and biases have none",
         not_negative);
  t.real("adam-beta1", o.adam_beta1, "B", "decay of the first moment", probability_below_1);
  t.real("adam-beta2", o.adam_beta2, "B", "decay of the second moment", probability_below_1);
  t.real("adam-eps", o.adam_eps, "EPS", "added to the root of the second moment", positive);
  t.real("sgd-momentum", o.sgd_momentum, "M", "share of sgd's last direction that stays in the next one",
         probability_below_1);
  t.real("clip-grad", o.clip_grad, "NORM", "longest gradient, as a 2-norm over all weights; 0 does not clip",
         not_negative);
  t.toggle("use-distributed-optimizer", o.use_distributed_optimizer,
           "split the optimizer state over data-parallel ranks; results are the same");
  t.toggle("value-head", o.value_head,
           "train a critic on the returns in --data, to the mean of 0.5 (value - return)^2");
  t.group("Loss scale (--fp16)");
  t.real("loss-scale", o.loss_scale, "SCALE", "a constant one (default: dynamic)", positive);
  t.real("initial-loss-scale", o.initial_loss_scale, "SCALE", "dynamic: the first one", positive);
  t.real("min-loss-scale", o.min_loss_scale, "SCALE", "dynamic: the smallest one", positive);
  t.integer("loss-scale-window", o.loss_scale_window, "N", "dynamic: finite iterations until it doubles", 1);
  t.integer("hysteresis", o.hysteresis, "N", "dynamic: overflows until it is halved", 1);
  add_precision(t, o.precision);
  t.group("Saving and evaluation");
  t.text("save", o.save, "DIR", "checkpoints, from which --load goes on");
  t.text("save-hf", o.save_hf, "DIR", "the trained model as a Hugging Face folder");
  t.integer("save-interval", o.save_interval, "N", "iterations between checkpoints (default: one at the end)",
            1);
  t.integer("keep-last", o.keep_last, "N", "checkpoints to keep (default: all)", 1);
  t.toggle("async-save", o.async_save, "train on while a checkpoint is written");
  t.list("eval-data", o.eval_data, "PATH", "held-out data, in the forms of --data");
  t.integer("eval-interval", o.eval_interval, "N", "iterations between evaluations", 1);
  t.integer("eval-iters", o.eval_iters, "N", "batches of each evaluation, fewer where the data ends", 1);
  t.text("log-dir", o.log_dir, "DIR", "gets metrics.jsonl, a line an iteration");
  t.integer("log-interval", o.log_interval, "N", "iterations between lines on a stderr that is no terminal",
            1);
  t.dependent = {{"decoupled-min-lr", "decoupled-lr"},
                 {"save-interval", "save"},
                 {"keep-last", "save"},
                 {"async-save", "save"},
                 {"eval-interval", "eval-data"},
                 {"eval-iters", "eval-data"}};
  t.choice("recompute-granularity", o.recompute_granularity, "activations to compute again",
           {"selective", "full"});
  t.choice("recompute-method", o.recompute_method, "which layers", {"uniform", "block"});
  t.integer("recompute-num-layers", o.recompute_num_layers, "N", "how many layers", 1);
  t.real("attention-dropout", o.attention_dropout, "P", "share of attention weights dropped",
         probability_below_1);
  t.real("hidden-dropout", o.hidden_dropout, "P", "share of hidden values dropped", probability_below_1);
  t.real("moe-aux-loss-coeff", o.moe_aux_loss_coeff, "C", "weight of the load-balancing loss", not_negative);
  t.real("moe-z-loss-coeff", o.moe_z_loss_coeff, "C", "weight of the router's z loss", not_negative);
  add_parallel(t, o.parallel);
  add_runtime(t, o.runtime, o.seed, "of random weights and of the data's order");
  return t;
}

Table table(OverridesOptions& o) {
  Table t("overrides",
          "The table of overridable targets: method_key, kind, active vendor, who else offers it.");
  t.group("Output");
  t.toggle("json", o.json, "as JSON");
  return t;
}

Table table(BenchOptions& o) {
  Table t("bench", "Times training steps on synthetic tokens of a config and prints one line of JSON.");
  t.group("Work");
  t.text("config-json", o.config_json, "FILE", "Hugging Face config.json of the model");
  t.required.push_back({"config-json"});
  t.integer("seq-length", o.seq_length, "N", "tokens of a sequence", 1);
  t.integer("micro-batch-size", o.micro_batch_size, "N", "sequences that a rank runs in a step", 1);
  t.integer("steps", o.steps, "N", "timed steps, of which the median counts", 1);
  t.integer("warmup", o.warmup, "N", "steps before them that are not timed", 0);
  add_precision(t, o.precision);
  add_parallel(t, o.parallel);
  add_runtime(t, o.runtime, o.seed, "of random weights and tokens");
  return t;
}

// ---- nearest names ----

std::string nearest(std::string name, const Names& known) {
  std::replace(name.begin(), name.end(), '_', '-');
  return *std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
}

Names flag_names(const Table& t) {
  Names names;
  for (const auto& flag : t.flags) names.push_back(flag.name);
  return names;
}

// ---- the command line ----

/// What a command line says, before its values are understood.
struct CommandLine {
  std::string config;
  bool print_config = false;
  std::vector<std::pair<std::string, Strings>> values;  // name of a flag, its values

  /// The flag is there, and does not merely switch a toggle off.
  bool asks_for(const std::string& name) const {
    return std::any_of(values.begin(), values.end(), [&](const auto& entry) {
      return entry.first == name && entry.second != Strings{"false"};
    });
  }
  bool names(const std::string& name) const {
    return std::any_of(values.begin(), values.end(), [&](const auto& entry) { return entry.first == name; });
  }
};

/// A table as CLI11 sees it: splits the command line and writes the help.
class Parser {
 public:
  explicit Parser(const Table& table)
      : table_(table), app_("mgfl " + table.command + ": " + table.about, "mgfl " + table.command) {
    app_.set_help_flag("");
    app_.allow_extras(true);
    app_.get_formatter()->column_width(help_column);
    cells_.resize(table.flags.size());
    const auto last = CLI::MultiOptionPolicy::TakeLast;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const Flag& flag = table.flags[i];
      if (flag.arity == Arity::toggle) {
        app_.add_flag(flag.shown(), cells_[i].toggle, flag.help)
            ->multi_option_policy(last)
            ->group(flag.group);
        continue;
      }
      auto help = flag.help;
      if (table.must(flag.name))
        help += "; required";
      else if (!flag.initial.empty())
        help += " (default: " + flag.initial + ")";
      auto* option = app_.add_option(flag.shown(), cells_[i].values, help);
      option->type_name(flag.value)->group(flag.group);
      if (flag.arity == Arity::one) option->expected(1)->allow_extra_args(false)->multi_option_policy(last);
    }
    const char* group = "Configuration";
    app_.add_option("--config", config_, "TOML file with the same keys (lr = 1e-4); flags win over it")
        ->type_name("FILE")
        ->multi_option_policy(last)
        ->group(group);
    app_.add_flag("--print-config", print_config_, "print the merged result as such a file, and end")
        ->group(group);
    app_.add_flag("--help,-h", help_, "print this text, and end")->group(group);
  }

  /// CLI11's help, wrapped at 110 columns and without its doubled blank lines.
  std::string help() const {
    std::istringstream lines(app_.help());
    std::string out;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() && out.size() >= 2 && out.compare(out.size() - 2, 2, "\n\n") == 0) continue;
      while (line.size() > 110 && line.rfind(' ', 110) > help_column) {
        const auto cut = line.rfind(' ', 110);
        out += line.substr(0, cut) + "\n";
        line = std::string(help_column, ' ') + line.substr(cut + 1);
      }
      out += line + "\n";
    }
    return out;
  }

  /// `--prefix --threads 1`: CLI11 takes the next flag for the value that was forgotten.
  void refuse_flags_as_values() const {
    const auto known = flag_names(table_);
    for (std::size_t i = 0; i < cells_.size(); ++i)
      for (const auto& value : cells_[i].values)
        if (value.rfind("--", 0) == 0 &&
            std::find(known.begin(), known.end(), value.substr(2)) != known.end())
          throw UserError(concat("--", table_.flags[i].name, " of mgfl ", table_.command, " needs a value; ",
                                 value, " follows it."));
  }

  CommandLine parse(const Strings& arguments) {
    Strings reversed(arguments.rbegin(), arguments.rend());
    try {
      app_.parse(reversed);
    } catch (const CLI::ArgumentMismatch& error) {
      const std::string text = error.what();
      throw UserError(concat(text.substr(0, text.find(':')), " of mgfl ", table_.command, " needs a value."));
    } catch (const CLI::ParseError& error) {
      throw UserError(concat("the flags of mgfl ", table_.command, " cannot be read: ", error.what(), "."));
    }
    refuse_flags_as_values();
    for (const auto& extra : app_.remaining()) {
      const auto start = extra.find_first_not_of('-');
      check_user(start != 0, "mgfl ", table_.command, " does not take \"", extra,
                 "\", which belongs to no flag; mgfl ", table_.command, " --help lists the flags.");
      auto known = flag_names(table_);
      known.insert(known.end(), {"config", "print-config", "help"});
      const auto name = extra.substr(0, extra.find('='));
      throw UserError(concat("mgfl ", table_.command, " has no flag ", name, "; the nearest one is --",
                             nearest(name.substr(std::min(start, name.size())), known), "."));
    }
    CommandLine line{config_, print_config_, {}};
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const Flag& flag = table_.flags[i];
      if (app_.get_option(flag.shown())->count() == 0) continue;
      auto values = flag.arity == Arity::toggle ? Strings{cells_[i].toggle} : cells_[i].values;
      for (const auto& value : values)
        check_user(value.compare(0, 2, "--") != 0, flag.shown(), " of mgfl ", table_.command,
                   " needs a value, but ", value, " follows it.");
      line.values.emplace_back(flag.name, std::move(values));
    }
    return line;
  }

 private:
  static constexpr std::size_t help_column = 46;

  struct Cell {
    std::string toggle;
    Strings values;
  };

  const Table& table_;
  CLI::App app_;
  std::vector<Cell> cells_;  // CLI11 holds references into it
  std::string config_;
  bool print_config_ = false;
  bool help_ = false;  // for the help text; the flag itself is looked for before parsing
};

// ---- merging, checking, printing ----

void set_flag(Flag& flag, const Strings& values, const std::string& label) {
  flag.set(values, label);
  flag.given = flag.arity != Arity::toggle || values.front() == "true";
}

/// Another flag of the same exclusive set stands on the command line, so that the file's choice no longer
/// counts.
bool outvoted(const Table& table, const CommandLine& line, const std::string& key) {
  return std::any_of(table.exclusive.begin(), table.exclusive.end(), [&](const Names& set) {
    return std::find(set.begin(), set.end(), key) != set.end() &&
           std::any_of(set.begin(), set.end(), [&](const auto& name) { return line.asks_for(name); });
  });
}

void merge(Table& table, const CommandLine& line) {
  if (!line.config.empty()) {
    for (const auto& entry : read_config_file(line.config)) {
      auto* flag = table.find(entry.key);
      check_user(flag != nullptr, "the configuration ", line.config, ", line ", entry.line, ", sets \"",
                 entry.key, "\", which mgfl ", table.command, " does not know; the nearest key is \"",
                 nearest(entry.key, flag_names(table)), "\".");
      if (line.names(entry.key) || outvoted(table, line, entry.key)) continue;
      set_flag(*flag, entry.values, concat("\"", entry.key, "\" in line ", entry.line, " of ", line.config));
    }
  }
  for (const auto& [name, values] : line.values) {
    auto& flag = *table.find(name);
    set_flag(flag, values, flag.shown());
  }
}

void check_choices(Table& table) {
  for (const auto& set : table.exclusive) {
    std::string first;
    for (const auto& name : set) {
      if (!table.find(name)->given) continue;
      check_user(first.empty(), "--", first, " and --", name, " exclude each other; keep one.");
      first = name;
    }
  }
  for (const auto& flag : table.flags) {
    const auto* entry = missing(flag.name);
    if (entry == nullptr || flag.get() == flag.initial) continue;
    const auto value = flag.arity == Arity::toggle ? std::string() : " " + flag.get();
    throw UserError(concat(flag.shown(), value, " is not possible: ", entry->supported, "."));
  }
}

void check_complete(Table& table) {
  for (const auto& set : table.required) {
    const bool there =
        std::any_of(set.begin(), set.end(), [&](const auto& name) { return table.find(name)->given; });
    if (there) continue;
    Names shown;
    for (const auto& name : set) shown.push_back("--" + name + " " + table.find(name)->value);
    throw UserError(set.size() > 1
                        ? concat("mgfl ", table.command, " needs a model: one of ", join(shown), ".")
                        : concat("mgfl ", table.command, " needs ", shown.front(), ": ",
                                 table.find(set.front())->help, "."));
  }
  for (const auto& [name, other] : table.dependent) {
    const auto& flag = *table.find(name);
    check_user(flag.get() == flag.initial || table.find(other)->given, flag.shown(), " needs --", other,
               " as well.");
  }
}

std::string as_toml(Table& table) {
  std::ostringstream out;
  out << "# mgfl " << table.command << ": flags and --config merged. Lines with # are not set.\n";
  std::string group;
  for (const auto& flag : table.flags) {
    if (flag.group != group) out << "\n# " << flag.group << "\n";
    group = flag.group;
    const bool replaced = std::any_of(table.exclusive.begin(), table.exclusive.end(), [&](const Names& set) {
      return !flag.given && flag.arity != Arity::toggle &&
             std::find(set.begin(), set.end(), flag.name) != set.end() &&
             std::any_of(set.begin(), set.end(), [&](const auto& name) { return table.find(name)->given; });
    });
    const bool unset = flag.get().empty() || replaced || (table.must(flag.name) && !flag.given);
    out << (unset ? "# " : "") << flag.name << " =" << (unset ? "" : " " + flag.get()) << "\n";
  }
  return out.str();
}

void check_values(const TrainOptions& options) {
  check_user(options.lr_decay_style != scheduler::LrDecayStyle::wsd || options.lr_wsd_decay_iters.has_value(),
             "--lr-decay-style WSD needs --lr-wsd-decay-iters N: iterations of its last part.");
  // Both refuse what describes no schedule; one sample an iteration lets their messages count iterations.
  optimizer::Optimizer no_groups;
  scheduler::OptimizerParamScheduler(no_groups, scheduler_config(options, 1));
  optimizer::DynamicGradScaler(scaler_config(options));
  if (options.decoupled_lr) {
    const double lowest = options.decoupled_min_lr.value_or(options.min_lr);
    check_user(lowest <= *options.decoupled_lr, "--decoupled-lr ", *options.decoupled_lr,
               " is below the lowest rate, ", lowest, "; raise it, or give a lower --decoupled-min-lr.");
    check_user(options.lr_warmup_iters == 0 || options.lr_warmup_init <= *options.decoupled_lr,
               "--lr-warmup-init ", options.lr_warmup_init, " is above --decoupled-lr ",
               *options.decoupled_lr, "; the warm-up of embedding and output layer would go down.");
  }
}

void check_values(const ScoreOptions& options) {
  check_user(!options.value_head || !options.logits,
             "--logits and --value-head exclude each other: a value head has no logits.");
  check_user(!options.value_head || options.temperature == 1.0,
             "--temperature and --value-head exclude each other: a value head has no logits to divide.");
}

template <class Other>
void check_values(const Other&) {}

template <class CommandOptions>
Options parse_command(const Strings& arguments) {
  CommandOptions options;
  auto flags = table(options);
  for (auto& flag : flags.flags)
    if (missing(flag.name)) flag.group = "Not in this version, accepted at their defaults only";
  // What cannot be used yet is shown last.
  std::stable_partition(flags.flags.begin(), flags.flags.end(),
                        [](const Flag& flag) { return !missing(flag.name); });
  Parser parser(flags);
  const auto asks_help = [](const std::string& argument) { return argument == "--help" || argument == "-h"; };
  if (std::any_of(arguments.begin(), arguments.end(), asks_help)) return EarlyExit{0, parser.help()};
  const auto line = parser.parse(arguments);
  merge(flags, line);
  check_choices(flags);
  if (line.print_config) return EarlyExit{0, as_toml(flags)};
  check_complete(flags);
  check_values(options);
  return options;
}

struct Command {
  const char* name;
  const char* about;
  Options (*parse)(const Strings&);
};

constexpr Command commands[] = {
    {"train", "train a model", &parse_command<TrainOptions>},
    {"score", "log-probabilities, entropy, loss and gradients of given tokens", &parse_command<ScoreOptions>},
    {"generate", "continue given tokens", &parse_command<GenerateOptions>},
    {"overrides", "the table of overridable targets", &parse_command<OverridesOptions>},
    {"bench", "time training steps on synthetic tokens", &parse_command<BenchOptions>},
};

std::string overview() {
  std::ostringstream out;
  out << "mgfl trains large language models.\n\nUsage: mgfl COMMAND [flags], alone or under mpirun -n "
         "N\n\nCommands:\n";
  for (const auto& command : commands)
    out << "  " << command.name << std::string(12 - std::string_view(command.name).size(), ' ')
        << command.about << "\n";
  out << "\nmgfl COMMAND --help explains the flags of a command; mgfl --version prints the version.\n"
         "Status: 0 done, 1 the input is wrong, 2 a failure while running, 3 stopped by a signal after "
         "saving.\n";
  return out.str();
}

}  // namespace

std::string described(const Options& options) {
  return std::visit(
      [](const auto& command) -> std::string {
        using Command = std::remove_cvref_t<decltype(command)>;
        if constexpr (std::is_same_v<Command, EarlyExit>) {
          return "a text to print\n";
        } else {
          auto copy = command;
          auto flags = table(copy);
          std::istringstream lines(as_toml(flags));
          std::string all, line;
          while (std::getline(lines, line))
            if (line.rfind("threads", 0) != 0 && line.rfind("# threads", 0) != 0) all += line + "\n";
          return concat("command ", flags.command, "\n", all);
        }
      },
      options);
}

Names flags_without_effect(const TrainOptions& o, std::int64_t data_parallel_size) {
  const TrainOptions fresh;
  Names found;
  const auto look = [&](bool set, bool counts, const char* flag, const char* condition) {
    if (set && !counts) found.push_back(concat(flag, " changes nothing without ", condition));
  };
  const bool fp16 = o.precision.fp16, dynamic = fp16 && !o.loss_scale;
  const char* dynamic_scale = "--fp16 and a dynamic loss scale";
  look(o.loss_scale != fresh.loss_scale, fp16, "--loss-scale", "--fp16");
  look(o.initial_loss_scale != fresh.initial_loss_scale, dynamic, "--initial-loss-scale", dynamic_scale);
  look(o.min_loss_scale != fresh.min_loss_scale, dynamic, "--min-loss-scale", dynamic_scale);
  look(o.loss_scale_window != fresh.loss_scale_window, dynamic, "--loss-scale-window", dynamic_scale);
  look(o.hysteresis != fresh.hysteresis, dynamic, "--hysteresis", dynamic_scale);
  const bool adam = o.optimizer == "adam", wsd = o.lr_decay_style == scheduler::LrDecayStyle::wsd;
  look(o.adam_beta1 != fresh.adam_beta1, adam, "--adam-beta1", "--optimizer adam");
  look(o.adam_beta2 != fresh.adam_beta2, adam, "--adam-beta2", "--optimizer adam");
  look(o.adam_eps != fresh.adam_eps, adam, "--adam-eps", "--optimizer adam");
  look(o.sgd_momentum != fresh.sgd_momentum, !adam, "--sgd-momentum", "--optimizer sgd");
  look(o.lr_wsd_decay_iters != fresh.lr_wsd_decay_iters, wsd, "--lr-wsd-decay-iters", "--lr-decay-style WSD");
  look(o.lr_wsd_decay_style != fresh.lr_wsd_decay_style, wsd, "--lr-wsd-decay-style", "--lr-decay-style WSD");
  look(o.lr_warmup_init != fresh.lr_warmup_init, o.lr_warmup_iters > 0, "--lr-warmup-init",
       "--lr-warmup-iters");
  look(o.parallel.sequence_parallel, o.parallel.tensor_model_parallel_size > 1, "--sequence-parallel",
       "--tensor-model-parallel-size above 1");
  look(o.use_distributed_optimizer, data_parallel_size > 1, "--use-distributed-optimizer",
       "several data-parallel ranks");
  return found;
}

Options parse(int argc, const char* const* argv) {
  Names names;
  for (const auto& command : commands) names.push_back(command.name);
  check_user(argc > 1, "mgfl needs a command: ", join(names), "; mgfl --help explains them.");
  const std::string name = argv[1];
  if (name == "--help" || name == "-h") return EarlyExit{0, overview()};
  if (name == "--version") return EarlyExit{0, "mgfl " MGFL_VERSION "\n"};
  check_user(name.empty() || name.front() != '-', "mgfl takes its command first and then ", name,
             "; the commands are ", join(names), ".");
  for (const auto& command : commands)
    if (name == command.name) return command.parse(Strings(argv + 2, argv + argc));
  throw UserError(
      concat("this version of mgfl has no command \"", name, "\"; the commands are ", join(names), "."));
}

scheduler::OptimizerParamSchedulerConfig scheduler_config(const TrainOptions& o,
                                                          std::int64_t global_batch_size) {
  scheduler::OptimizerParamSchedulerConfig config;
  config.init_lr = o.lr_warmup_init;
  config.max_lr = o.lr;
  config.min_lr = o.min_lr;
  config.lr_warmup_steps = o.lr_warmup_iters * global_batch_size;
  config.lr_decay_steps = o.lr_decay_iters.value_or(o.train_iters) * global_batch_size;
  config.lr_decay_style = o.lr_decay_style;
  config.start_wd = config.end_wd = o.weight_decay;
  config.wd_incr_steps = o.train_iters * global_batch_size;
  config.lr_wsd_decay_steps = o.lr_wsd_decay_iters.value_or(0) * global_batch_size;
  config.lr_wsd_decay_style = o.lr_wsd_decay_style;
  config.use_checkpoint = o.use_checkpoint_opt_param_scheduler;
  config.override = o.override_opt_param_scheduler;
  return config;
}

std::string in_flags(const scheduler::ScheduleMismatch& mismatch) {
  constexpr std::pair<const char*, const char*> flags[] = {
      {"init_lr", "--lr-warmup-init"},
      {"max_lr", "--lr"},
      {"min_lr", "--min-lr"},
      {"lr_warmup_steps", "--lr-warmup-iters x samples"},
      {"lr_decay_style", "--lr-decay-style"},
      {"start_wd", "--weight-decay"},
      {"end_wd", "--weight-decay"},
      {"lr_decay_steps", "--lr-decay-iters x samples"},
      {"lr_wsd_decay_steps", "--lr-wsd-decay-iters x samples"},
      {"lr_wsd_decay_style", "--lr-wsd-decay-style"}};
  const auto* flag = std::find_if(std::begin(flags), std::end(flags),
                                  [&](const auto& entry) { return mismatch.field == entry.first; });
  const bool of_groups = mismatch.field.find("parameter group") != std::string::npos;
  const auto named = of_groups                 ? " (--decoupled-lr, --decoupled-min-lr)"
                     : flag == std::end(flags) ? ""
                                               : concat(" (", flag->second, ")");
  if (!mismatch.can_use_checkpoint)
    return concat("the schedule's ", mismatch.field, " is ", mismatch.here, " here and ", mismatch.saved,
                  " in the checkpoint: embedding and output layer have rates of their own in one of them "
                  "only; give --decoupled-lr and --decoupled-min-lr as before, or "
                  "--override-opt-param-scheduler.");
  return concat(
      "the schedule's ", mismatch.field, named, " is ", mismatch.here, " here and ", mismatch.saved,
      " in the checkpoint; give the same value, or choose with --override-opt-param-scheduler (this "
      "one) or --use-checkpoint-opt-param-scheduler (the checkpoint's).");
}

optimizer::DynamicGradScalerConfig scaler_config(const TrainOptions& o) {
  optimizer::DynamicGradScalerConfig config;
  config.initial_scale = o.initial_loss_scale;
  config.min_scale = o.min_loss_scale;
  config.growth_interval = o.loss_scale_window;
  config.hysteresis = o.hysteresis;
  return config;
}

}  // namespace mgfl::program
