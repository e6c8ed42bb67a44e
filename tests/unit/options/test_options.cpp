#include "tests/support/doctest.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "examples/mgfl/options.hpp"
#include "mgfl/base/error.hpp"

using namespace mgfl::program;
namespace fs = std::filesystem;

namespace {

using Arguments = std::vector<std::string>;

Options run(const Arguments& arguments) {
  std::vector<const char*> argv{"mgfl"};
  for (const auto& argument : arguments) argv.push_back(argument.c_str());
  return parse(static_cast<int>(argv.size()), argv.data());
}

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <class Command>
Command as(const Arguments& arguments) {
  auto options = run(arguments);
  REQUIRE(std::holds_alternative<Command>(options));
  return std::get<Command>(options);
}

std::string text(const Arguments& arguments) {
  const auto exit = as<EarlyExit>(arguments);
  CHECK(exit.exit_status == 0);
  return exit.text;
}

std::string refusal(const Arguments& arguments) {
  try {
    run(arguments);
  } catch (const mgfl::UserError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& whole, const std::string& part) {
  return whole.find(part) != std::string::npos;
}

/// A file that goes away with the object.
struct TemporaryFile {
  explicit TemporaryFile(const std::string& content) {
    static int count = 0;
    path = (fs::temp_directory_path() /
            ("mgfl_options_" + std::to_string(getpid()) + "_" + std::to_string(count++)))
               .string();
    std::ofstream(path) << content;
  }
  ~TemporaryFile() { fs::remove(path); }
  std::string path;
};

const Arguments train{"train", "--load-hf", "model", "--data", "text", "--train-iters", "20", "--lr", "1e-4"};
const Arguments score{"score", "--load-hf", "model", "--input", "in", "--output", "out"};
const Arguments generate{"generate", "--load",           "model", "--input", "in", "--output",
                         "out",      "--max-new-tokens", "8"};
const Arguments bench{"bench", "--config-json", "config.json"};

}  // namespace

TEST_CASE("defaults are Megatron's") {
  const auto t = as<TrainOptions>(train);
  CHECK(t.model.load_hf == "model");
  CHECK(t.data == Arguments{"text"});
  CHECK(t.train_iters == 20);
  CHECK(t.lr == 1e-4);
  CHECK(t.min_lr == 0);
  CHECK(t.lr_decay_style == mgfl::scheduler::LrDecayStyle::linear);
  CHECK(t.weight_decay == 0.01);
  CHECK(t.adam_beta1 == 0.9);
  CHECK(t.adam_beta2 == 0.999);
  CHECK(t.adam_eps == 1e-8);
  CHECK(t.clip_grad == 1.0);
  CHECK(t.optimizer == "adam");
  CHECK(t.sgd_momentum == 0.9);
  CHECK_FALSE(t.decoupled_lr);
  CHECK(t.seed == 1234);
  CHECK(t.initial_loss_scale == 4294967296.0);
  CHECK(t.loss_scale_window == 1000);
  CHECK(t.hysteresis == 2);
  CHECK(t.batch.micro_batch_size == 1);
  CHECK_FALSE(t.batch.max_tokens_per_micro_batch);
  CHECK_FALSE(t.global_batch_size);
  CHECK(t.precision.kind() == Precision::fp32);
  CHECK(t.log_interval == 1);

  const auto s = as<ScoreOptions>(score);
  CHECK(s.temperature == 1);
  CHECK_FALSE(s.logits);
  CHECK(s.prefix.empty());
  CHECK(as<GenerateOptions>(generate).greedy());
  CHECK_FALSE(as<GenerateOptions>(generate + Arguments{"--top-p", "0.9"}).greedy());
  CHECK_FALSE(as<GenerateOptions>(generate + Arguments{"--temperature", "0.7"}).greedy());
  CHECK(as<GenerateOptions>(generate + Arguments{"--temperature", "0", "--top-k", "5"}).greedy());
  CHECK(as<BenchOptions>(bench).seq_length == 512);
  CHECK_FALSE(as<OverridesOptions>({"overrides"}).json);
  CHECK(as<OverridesOptions>({"overrides", "--json"}).json);
}

TEST_CASE("flags are read, and the last one of a name counts") {
  const auto t =
      as<TrainOptions>(train + Arguments{"--bf16", "--data", "0.3", "a", "0.7", "b", "--lr=2e-4", "--lr",
                                         "3e-4", "--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "5",
                                         "--lr-wsd-decay-style", "minus_sqrt", "--global-batch-size", "8"});
  CHECK(t.precision.kind() == Precision::bf16);
  CHECK(t.data == Arguments{"text", "0.3", "a", "0.7", "b"});
  CHECK(t.lr == 3e-4);
  const auto config = scheduler_config(t, 8);
  CHECK(config.lr_decay_style == mgfl::scheduler::LrDecayStyle::wsd);
  CHECK(config.lr_wsd_decay_style == mgfl::scheduler::WsdDecayStyle::minus_sqrt);
  CHECK(config.lr_decay_steps == 160);
  CHECK(config.lr_wsd_decay_steps == 40);
  const auto s = as<ScoreOptions>(
      score + Arguments{"--logits", "--grads", "--prefix", "packed.", "--fp64", "--threads", "2"});
  CHECK(s.logits);
  CHECK(s.grads);
  CHECK(s.prefix == "packed.");
  CHECK(s.runtime.threads == 2);
  CHECK(s.precision.kind() == Precision::fp64);
}

TEST_CASE("flags win over the configuration file") {
  const TemporaryFile file(
      "# a run\n"
      "load-hf = 'models/a # b'   # quoted, so that the hash counts\n"
      "data = [\"0.5\", \"x\",\n  0.5, y]\n"
      "train-iters = 100\r\n"
      "lr = 1e-3\n"
      "bf16 = true\n"
      "micro-batch-size = 4\n"
      "log-dir = \"a\\\\b\\\"c\"");
  const Arguments command{"train", "--config", file.path};
  auto t = as<TrainOptions>(command);
  CHECK(t.model.load_hf == "models/a # b");
  CHECK(t.data == Arguments{"0.5", "x", "0.5", "y"});
  CHECK(t.train_iters == 100);
  CHECK(t.precision.bf16);
  CHECK(t.batch.micro_batch_size == 4);
  CHECK(t.log_dir == "a\\b\"c");

  // A flag also replaces the other choices of its kind.
  t = as<TrainOptions>(command + Arguments{"--lr", "5e-4", "--load", "checkpoint", "--fp16", "--data", "z",
                                           "--max-tokens-per-micro-batch", "256"});
  CHECK(t.lr == 5e-4);
  CHECK(t.model.load == "checkpoint");
  CHECK(t.model.load_hf.empty());
  CHECK(t.precision.kind() == Precision::fp16);
  CHECK(t.data == Arguments{"z"});
  CHECK(t.batch.max_tokens_per_micro_batch == 256);
  CHECK(as<TrainOptions>(command + Arguments{"--bf16=false"}).precision.kind() == Precision::fp32);
}

TEST_CASE("what --print-config prints gives the same options back") {
  const std::vector<Arguments> commands{
      train,
      train + Arguments{"--max-tokens-per-micro-batch",
                        "300",
                        "--bf16",
                        "--lr",
                        "0.1234567890123456789",
                        "--seed",
                        "9223372036854775807",
                        "--save",
                        "it's \"here\" \\ # now",
                        "--save-interval",
                        "5",
                        "--eval-data",
                        "0.5",
                        "e",
                        "0.5",
                        "f",
                        "--lr-decay-style",
                        "cosine",
                        "--loss-scale",
                        "1e-3",
                        "--no-shuffle",
                        "--min-lr",
                        "1e-5",
                        "--lr-warmup-iters",
                        "3",
                        "--timeout-seconds",
                        "12.5",
                        "--keep-last",
                        "2"},
      score +
          Arguments{"--prefix", "packed.", "--logits", "--fp64", "--temperature", "0.7", "--threads", "2"},
      generate + Arguments{"--top-k", "5", "--top-p", "0.25", "--temperature", "1.5"},
      bench + Arguments{"--steps", "7", "--warmup", "0", "--bf16"},
      {"overrides", "--json"},
  };
  for (const auto& command : commands) {
    CAPTURE(command.front());
    const TemporaryFile file(text(command + Arguments{"--print-config"}));
    const auto before = run(command);
    const auto after = run({command.front(), "--config", file.path});
    REQUIRE(before.index() == after.index());
    std::visit(
        [&](const auto& options) {
          using Command = std::remove_cvref_t<decltype(options)>;
          if constexpr (!std::is_same_v<Command, EarlyExit>) CHECK(options == std::get<Command>(after));
        },
        before);
  }
  // Incomplete commands print too: a file to start from.
  CHECK(contains(text({"train", "--print-config"}), "# lr =\n"));
}

TEST_CASE("unknown names get the nearest known one") {
  CHECK(contains(refusal({"train", "--lr-decay-stile", "cosine"}), "--lr-decay-style"));
  CHECK(contains(refusal({"train", "--micro_batch_size=3"}), "--micro-batch-size"));
  CHECK(contains(refusal({"score", "--logit"}), "--logits"));
  CHECK(contains(refusal({"train", "--print-confg"}), "--print-config"));
  const TemporaryFile file("lr = 1\n\nglobal-batchsize = 8\n");
  const auto message = refusal({"train", "--config", file.path});
  CHECK(contains(message, "global-batch-size"));
  CHECK(contains(message, "line 3"));
  CHECK(contains(message, file.path));
  CHECK(contains(refusal({"train", "stray"}), "\"stray\""));
  for (const char* name : {"convert", "plan", "trian"}) {
    const auto unknown = refusal({name});
    CHECK(contains(unknown, name));
    CHECK(contains(unknown, "train, score, generate, overrides, bench"));
  }
  CHECK(contains(refusal({}), "train, score, generate, overrides, bench"));
  CHECK(contains(refusal({"--lr", "3"}), "command first"));
}

TEST_CASE("choices exclude each other") {
  CHECK(contains(refusal(train + Arguments{"--load", "x"}), "--load-hf and --load exclude each other"));
  CHECK(contains(refusal(train + Arguments{"--init-from", "x"}), "--load-hf and --init-from exclude"));
  CHECK(contains(refusal(train + Arguments{"--bf16", "--fp64"}), "--bf16 and --fp64 exclude"));
  CHECK(contains(refusal(train + Arguments{"--micro-batch-size", "1", "--max-tokens-per-micro-batch", "9"}),
                 "--micro-batch-size and --max-tokens-per-micro-batch exclude"));
  const TemporaryFile file("bf16 = true\nfp16 = true\n");
  CHECK(contains(refusal(train + Arguments{"--config", file.path}), "--bf16 and --fp16 exclude"));
}

TEST_CASE("values out of range are refused, naming flag and value") {
  for (const char* value : {"-1", "nan", "inf", "1e999", "", "abc", "1x", "--min-lr"}) {
    CAPTURE(value);
    const auto message = refusal(train + Arguments{"--lr", value});
    CHECK(contains(message, "--lr "));
    CHECK(contains(message, value));
  }
  for (const char* value : {"0", "-3", "1.5", "1e3", "99999999999999999999", "2147483648"}) {
    CAPTURE(value);
    const auto message = refusal(train + Arguments{"--micro-batch-size", value});
    CHECK(contains(message, "--micro-batch-size takes a whole number from 1"));
    CHECK(contains(message, value));
  }
  CHECK(contains(refusal(train + Arguments{"--adam-beta2", "1"}), "below 1"));
  CHECK(contains(refusal(train + Arguments{"--adam-eps", "0"}), "above 0"));
  CHECK(contains(refusal(score + Arguments{"--temperature", "0"}), "of at least"));
  CHECK(contains(refusal(generate + Arguments{"--top-p", "1.5"}), "at most 1"));
  CHECK(contains(refusal(train + Arguments{"--lr-decay-style", "cos"}), "inverse-square-root"));
  CHECK(contains(refusal(train + Arguments{"--bf16=maybe"}), "true or false"));
  CHECK(contains(refusal({"train", "--load-hf", "m", "--data", "d", "--lr", "1"}),
                 "mgfl train needs --train-iters N: iterations in all"));
  CHECK(contains(refusal(train + Arguments{"--save"}), "--save of mgfl train needs a value"));
  CHECK(contains(refusal(train + Arguments{"--save", "--bf16"}), "needs a value"));
  const TemporaryFile file("lr = [1, 2]\n");
  const auto message = refusal({"train", "--config", file.path});
  CHECK(contains(message, "line 1"));
  CHECK(contains(message, "takes one value, not 2"));
}

TEST_CASE("what is missing, or makes no sense alone, is named") {
  CHECK(contains(refusal({"train"}), "--load-hf DIR, --load DIR, --init-from CONFIG.JSON"));
  CHECK(contains(refusal({"train", "--load", "x"}), "--data"));
  CHECK(contains(refusal({"train", "--load", "x", "--data", "y"}), "--train-iters"));
  CHECK(contains(refusal({"train", "--load", "x", "--data", "y", "--train-iters", "5"}), "--lr"));
  CHECK(contains(refusal({"score", "--load", "x", "--input", "y"}), "--output"));
  CHECK(contains(refusal({"bench"}), "--config-json"));
  CHECK(contains(refusal(train + Arguments{"--save-interval", "5"}), "--save"));
  CHECK(contains(refusal(train + Arguments{"--eval-interval", "5"}), "--eval-data"));
  CHECK(contains(refusal(train + Arguments{"--lr-decay-style", "WSD"}), "--lr-wsd-decay-iters"));
  CHECK(contains(refusal(train + Arguments{"--lr-warmup-iters", "20"}), "warm-up of 20"));
  CHECK(contains(refusal(train + Arguments{"--min-lr", "1"}), "min_lr"));
  CHECK(contains(refusal(train + Arguments{"--min-loss-scale", "1e20"}), "loss scale"));
}

TEST_CASE("what this version lacks is accepted at its default only") {
  CHECK(run(train + Arguments{"--tensor-model-parallel-size", "1", "--optimizer", "adam", "--hidden-dropout",
                              "0.0", "--pipeline-schedule", "1f1b", "--async-save=false"})
            .index() == 0);
  const std::vector<Arguments> lacking{{"--pipeline-model-parallel-size", "2"},
                                       {"--context-parallel-size", "2"},
                                       {"--expert-model-parallel-size", "4"},
                                       {"--recompute-granularity", "full"},
                                       {"--attention-dropout", "0.1"},
                                       {"--moe-aux-loss-coeff", "0.01"},
                                       {"--async-save"}};
  for (const auto& flag : lacking) {
    CAPTURE(flag.front());
    const auto message = refusal(train + flag);
    CHECK(contains(message, flag.front()));
    CHECK(contains(message, "this version"));
  }
}

TEST_CASE("a described command line has every flag that ranks must share") {
  const auto described_of = [](const Arguments& arguments) { return described(run(arguments)); };
  CHECK(described_of(train + Arguments{"--threads", "2"}) == described_of(train));
  CHECK(described_of(train + Arguments{"--no-shuffle"}) != described_of(train));
  CHECK(described_of(train + Arguments{"--seed", "7"}) != described_of(train));
  CHECK(described_of(train).find("command train\n") == 0);
  CHECK(described_of({"score", "--help"}) != described_of(score));
}

TEST_CASE("the optimizer, and rates of embedding and output layer") {
  const auto t = as<TrainOptions>(train + Arguments{"--optimizer", "sgd", "--sgd-momentum", "0.5",
                                                    "--decoupled-lr", "1e-3", "--decoupled-min-lr", "1e-5"});
  CHECK(t.optimizer == "sgd");
  CHECK(t.sgd_momentum == 0.5);
  CHECK(t.decoupled_lr == 1e-3);
  CHECK(t.decoupled_min_lr == 1e-5);
  CHECK(contains(refusal(train + Arguments{"--optimizer", "lion"}), "adam, sgd"));
  CHECK(contains(refusal(train + Arguments{"--sgd-momentum", "1"}), "--sgd-momentum"));
  CHECK(contains(refusal(train + Arguments{"--decoupled-min-lr", "1e-5"}), "--decoupled-lr"));
  CHECK(contains(refusal(train + Arguments{"--min-lr", "1e-5", "--decoupled-lr", "1e-6"}),
                 "--decoupled-min-lr"));
  const Arguments warm{"--decoupled-lr", "1e-6", "--lr-warmup-init", "1e-5"};
  CHECK(refusal(train + warm) == "");
  CHECK(contains(refusal(train + warm + Arguments{"--lr-warmup-iters", "2"}), "above --decoupled-lr 1e-06"));
  const auto stable = train + Arguments{"--lr-decay-style", "warmup-stable-decay"};
  CHECK(scheduler_config(as<TrainOptions>(stable), 4).lr_decay_style ==
        mgfl::scheduler::LrDecayStyle::warmup_stable_decay);
}

TEST_CASE("flags that change nothing beside the others are named") {
  const auto notes = [](const Arguments& flags) {
    return flags_without_effect(as<TrainOptions>(train + flags), 1);
  };
  CHECK(notes({}).empty());
  CHECK(notes({"--loss-scale", "2"}) == Arguments{"--loss-scale changes nothing without --fp16"});
  CHECK(notes({"--fp16", "--loss-scale", "2"}).empty());
  CHECK(notes({"--fp16", "--hysteresis", "3", "--loss-scale-window", "5", "--initial-loss-scale", "8",
               "--min-loss-scale", "2"})
            .empty());
  CHECK(notes({"--fp16", "--hysteresis", "3", "--loss-scale", "2"}) ==
        Arguments{"--hysteresis changes nothing without --fp16 and a dynamic loss scale"});
  CHECK(notes({"--sgd-momentum", "0.5"}) ==
        Arguments{"--sgd-momentum changes nothing without --optimizer sgd"});
  CHECK(notes({"--optimizer", "sgd", "--adam-beta1", "0.5", "--sgd-momentum", "0.5"}) ==
        Arguments{"--adam-beta1 changes nothing without --optimizer adam"});
  CHECK(notes({"--lr-wsd-decay-iters", "2", "--lr-wsd-decay-style", "linear"}).size() == 2);
  CHECK(notes({"--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "2"}).empty());
  CHECK(notes({"--sequence-parallel"}).size() == 1);
  CHECK(notes({"--lr-warmup-init", "1e-6"}).size() == 1);
  CHECK(notes({"--lr-warmup-init", "1e-6", "--lr-warmup-iters", "2"}).empty());
  CHECK(notes({"--use-distributed-optimizer"}).size() == 1);
  CHECK(flags_without_effect(as<TrainOptions>(train + Arguments{"--use-distributed-optimizer"}), 2).empty());
  CHECK(notes({"--sequence-parallel", "--tensor-model-parallel-size", "2"}).empty());
}

TEST_CASE("a schedule that is not the checkpoint's is named by its flag") {
  const auto text = in_flags({"lr_decay_steps", "80", "160"});
  CHECK(contains(text, "lr_decay_steps (--lr-decay-iters x samples) is 80 here and 160 in"));
  CHECK(contains(text, "--override-opt-param-scheduler"));
  CHECK(contains(in_flags({"max_lr", "1", "2"}), "max_lr (--lr) is 1 here and 2 in the checkpoint"));
  CHECK(contains(in_flags({"wd_incr_steps", "1", "2"}), "wd_incr_steps is 1 here"));
}

TEST_CASE("the optimizer's state: on every rank, or split over them") {
  CHECK(!as<TrainOptions>(train).use_distributed_optimizer);
  CHECK(as<TrainOptions>(train + Arguments{"--use-distributed-optimizer"}).use_distributed_optimizer);
  CHECK(!as<TrainOptions>(train + Arguments{"--use-distributed-optimizer=false"}).use_distributed_optimizer);
}

TEST_CASE("the value head, and what goes with it") {
  const Arguments score{"score", "--load-hf", "m", "--input", "i", "--output", "o"};
  CHECK(as<TrainOptions>(train + Arguments{"--value-head"}).value_head);
  CHECK(!as<ScoreOptions>(score).value_head);
  const auto critic = score + Arguments{"--value-head"};
  CHECK(as<ScoreOptions>(critic + Arguments{"--grads"}).value_head);
  CHECK(as<ScoreOptions>(critic + Arguments{"--value-clip", "0.2"}).value_clip == 0.2);
  CHECK(as<ScoreOptions>(critic + Arguments{"--temperature", "1"}).temperature == 1);

  CHECK(contains(refusal(score + Arguments{"--value-clip", "0.2"}), "--value-clip needs --value-head"));
  CHECK(contains(refusal(critic + Arguments{"--value-clip", "-0.2"}), "--value-clip"));
  CHECK(contains(refusal(critic + Arguments{"--value-clip", "0"}), "--value-clip"));
  CHECK(contains(refusal(critic + Arguments{"--logits"}), "--logits and --value-head"));
  CHECK(contains(refusal(critic + Arguments{"--temperature", "2"}), "--temperature and --value-head"));
  CHECK(contains(refusal(train + Arguments{"--value-clip", "0.2"}), "no flag --value-clip"));
  CHECK(contains(text({"score", "--help"}), "--value-clip C"));
}

TEST_CASE("help and version") {
  CHECK(contains(text({"--help"}), "generate"));
  CHECK(contains(text({"--version"}), "mgfl "));
  for (const char* command : {"train", "score", "generate", "overrides", "bench"}) {
    CAPTURE(command);
    CHECK(contains(text({command, "--help"}), "--print-config"));
    CHECK(contains(text({command, "-h"}), "--config FILE"));
  }
  const auto help = text({"train", "--help"});
  CHECK(contains(help, "--adam-beta2 B"));
  CHECK(contains(help, "(default: 0.999)"));
  CHECK(contains(help, "Learning rate"));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 110);
}

TEST_CASE("files that are no configuration are refused with the line") {
  CHECK(contains(refusal({"train", "--config", "/nonexistent/run.toml"}), "/nonexistent/run.toml"));
  CHECK(refusal({"train", "--config", fs::temp_directory_path().string()}) != "");
  const std::pair<const char*, const char*> broken[] = {
      {"lr = 1\n[train]\nseed = 2", "line 2 starts a section"},
      {"lr", "line 1 has no \"=\""},
      {"= 3", "line 1 has no key"},
      {"lr =", "line 1 has no value"},
      {"\nsave = \"a", "line 2 has a string without"},
      {"data = [1, 2", "inside an array"},
      {"data = [1 2]", "after an array's value"},
      {"data = a b", "goes on after the value"},
      {"save = \"a\\q\"", "escape"},
      {"lr = 1\nseed = 3\nlr = 2", "line 1 and again in line 3"},
  };
  for (const auto& [content, expected] : broken) {
    CAPTURE(content);
    const TemporaryFile file(content);
    const auto message = refusal({"train", "--config", file.path});
    CAPTURE(message);
    CHECK(contains(message, expected));
    CHECK(contains(message, file.path));
  }
}
