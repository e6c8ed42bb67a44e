// Modes, steps, mini-batches, and engines that hold no optimizer.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <stdexcept>

#include <unistd.h>

#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using test::contains;
using test::error_of;
using test::Lengths;
using test::max_difference;

namespace {

const test::Fixture& fixture() {
  static const test::Fixture instance("qwen3");
  return instance;
}

/// An initialized engine.
template <class P>
struct Ready : LanguageModelEngine<parallel::Self, P> {
  explicit Ready(EngineConfig config = {}, optimizer::OptimizerConfig optimizer = test::adam())
      : LanguageModelEngine<parallel::Self, P>({fixture().folder, "", 1}, config, optimizer,
                                               test::constant_schedule(optimizer.lr, optimizer.weight_decay),
                                               test::self_context()) {
    this->initialize();
  }
};

template <class Engine>
double largest_grad(Engine& engine) {
  return engine.optimizer().main_grads().abs().max().template item<double>();
}

/// Every parameter's value and gradient lie inside the flat buffers.
template <class Engine>
void check_views(Engine& engine) {
  auto& buffer = engine.param_buffer();
  const auto inside = [](const Tensor& view, const Tensor& flat) {
    const auto* begin = static_cast<const char*>(flat.const_data_ptr());
    const auto* first = static_cast<const char*>(view.const_data_ptr());
    return first >= begin && first + view.nbytes() <= begin + flat.nbytes();
  };
  for (const auto& param : buffer.params) {
    CAPTURE(param.desc->name);
    CHECK(inside(*param.value, buffer.values));
    CHECK(inside(*param.main_grad, buffer.main_grads));
  }
}

/// Eight sequences that know their numbers and log them when the closure sees them.
Batch numbered_batch(std::int64_t sequences) {
  std::mt19937_64 random(31);
  Lengths lengths;
  std::vector<std::int64_t> own;
  for (std::int64_t s = 0; s < sequences; ++s) {
    lengths.push_back(3 + s % 4);
    own.push_back(s);
  }
  auto batch = test::random_batch(random, lengths, 331);
  batch.loss_mask.fill_(1.0);
  batch.sequence_fields.set("number", test::longs(own));
  return batch;
}

struct Recorder {
  std::vector<std::int64_t> seen;
  LossTerms operator()(const LossInput& input) {
    const auto& numbers = input.batch.sequence_fields.at("number");
    for (std::int64_t s = 0; s < numbers.numel(); ++s) seen.push_back(numbers[s].item<std::int64_t>());
    const auto mask = input.batch.labels.ne(ignore_index);
    return {{"loss", input.log_probs.sum().neg(), static_cast<double>(mask.sum().item<std::int64_t>())}};
  }
};

/// All ranks' sequences of each mini-batch, numbered as if one rank held all.
std::vector<std::vector<std::int64_t>> together(const Tensor& units, const MiniBatchConfig& config,
                                                std::int64_t epoch, const Lengths& held) {
  std::vector<std::vector<std::int64_t>> result;
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    const auto own = mini_batches_of_epoch(units, config, epoch, static_cast<int>(rank));
    result.resize(std::max(result.size(), own.size()));
    CHECK(own.size() == result.size());
    for (std::size_t m = 0; m < own.size(); ++m) {
      CHECK(std::is_sorted(own[m].begin(), own[m].end()));
      for (const auto s : own[m]) result[m].push_back(first + s);
    }
    first += held[rank];
  }
  return result;
}

}  // namespace

TEST_CASE("train mode zeroes the gradients when it ends, unless told not to") {
  auto engine = Ready<optimizer::Fp32>();
  {
    const auto guard = engine.train_mode();
    engine.forward_backward_batch(fixture().batch(), SftLoss{});
    CHECK(largest_grad(engine) > 0);
  }
  CHECK(largest_grad(engine) == 0.0);
  {
    const auto guard = engine.train_mode({.zero_grad_on_exit = false});
    engine.forward_backward_batch(fixture().batch(), SftLoss{});
  }
  CHECK(largest_grad(engine) > 0);
  {
    const auto guard = engine.eval_mode();  // never its business
    engine.infer_batch(fixture().batch());
  }
  CHECK(largest_grad(engine) > 0);
  engine.optimizer_zero_grad();
  CHECK(largest_grad(engine) == 0.0);
}

TEST_CASE("an exception out of train mode always zeroes the gradients, and the next batch may come") {
  auto engine = Ready<optimizer::Fp32>();
  for (const bool zero : {true, false}) {
    CHECK_THROWS_AS(([&] {
                      const auto guard = engine.train_mode({.zero_grad_on_exit = zero});
                      engine.forward_backward_batch(fixture().batch(), SftLoss{});
                      CHECK(largest_grad(engine) > 0);
                      throw std::runtime_error("the caller's own");
                    }()),
                    std::runtime_error);
    CHECK(largest_grad(engine) == 0.0);
    // and out of a closure, after some micro-batches went backward
    int calls = 0;
    CHECK_THROWS_AS(([&] {
                      const auto guard = engine.train_mode({.zero_grad_on_exit = zero});
                      engine.forward_backward_batch(test::in_micro_batches_of(fixture().batch(), 1),
                                                    [&](const LossInput& input) -> LossTerms {
                                                      if (++calls == 2)
                                                        throw std::runtime_error("the closure's own");
                                                      return {{"loss", input.log_probs.sum(), 1.0}};
                                                    });
                    }()),
                    std::runtime_error);
    CHECK(calls == 2);
    CHECK(largest_grad(engine) == 0.0);
    CHECK_NOTHROW(engine.forward_backward_batch(fixture().batch(), SftLoss{}));
    engine.optimizer_zero_grad();
  }
}

TEST_CASE("one mode at a time") {
  auto engine = Ready<optimizer::Fp32>();
  {
    const auto guard = engine.train_mode();
    CHECK(error_of([&] { const auto other = engine.train_mode(); }) ==
          "train_mode: the engine is in a mode already; leave that first.");
    CHECK(error_of([&] { const auto other = engine.eval_mode(); }) ==
          "eval_mode: the engine is in a mode already; leave that first.");
    CHECK_NOTHROW(engine.train_batch(fixture().batch(), SftLoss{}));
  }
  const auto guard = engine.eval_mode();
  CHECK(error_of([&] { const auto other = engine.eval_mode(); }) ==
        "eval_mode: the engine is in a mode already; leave that first.");
}

TEST_CASE("to(): contents, gradients and views stay; a device that is not there is refused") {
  for (const bool offload : {false, true}) {
    EngineConfig config;
    config.param_offload = config.optimizer_offload = offload;
    auto engine = Ready<optimizer::Bf16WithFp32Main>(config);
    check_views(engine);
    engine.forward_backward_batch(fixture().batch(), SftLoss{});
    const auto grads = engine.optimizer().main_grads().clone(), values = engine.param_buffer().values.clone();
    engine.to(c10::DeviceType::CPU);
    engine.to(c10::DeviceType::CPU, true, false, false);
    engine.to(c10::DeviceType::CPU, false, true, true);
    check_views(engine);
    CHECK(engine.optimizer().main_grads().equal(grads));
    CHECK(engine.param_buffer().values.equal(values));
    engine.param_buffer().values.fill_(2.0);
    CHECK(engine.module().final_layernorm.value.to(at::kFloat).eq(2.0).all().item<bool>());
    engine.optimizer().main_grads().fill_(3.0);
    CHECK(engine.module().final_layernorm.main_grad.eq(3.0).all().item<bool>());
    CHECK(contains(error_of([&] { engine.to(c10::DeviceType::FPGA); }), "this LibTorch has no such device"));
    check_views(engine);
  }
}

TEST_CASE("with offload flags, modes train as without") {
  auto plain = Ready<optimizer::Fp32>();
  EngineConfig config;
  config.param_offload = config.optimizer_offload = true;
  auto offloading = Ready<optimizer::Fp32>(config);
  CHECK(offloading.is_param_offload_enabled());
  CHECK(offloading.is_optimizer_offload_enabled());
  for (int step = 0; step < 2; ++step) {
    plain.train_batch(fixture().batch(), SftLoss{});
    const auto guard = offloading.train_mode();
    offloading.train_batch(fixture().batch(), SftLoss{});
  }
  CHECK(plain.param_buffer().values.equal(offloading.param_buffer().values));
  check_views(offloading);
}

TEST_CASE("a forward-only engine holds no optimizer, and every call that needs one says so") {
  EngineConfig config;
  config.forward_only = true;
  auto engine = Ready<optimizer::Fp32>(config);
  const auto batch = fixture().batch();
  CHECK_FALSE(engine.param_buffer().main_grads.defined());
  CHECK_FALSE(engine.param_buffer().main_params.defined());
  const auto refused = [&](const char* name, auto&& call) {
    CAPTURE(name);
    CHECK(error_of(call) == concat(name, ": this engine is forward_only; it holds no optimizer."));
  };
  test::TemporaryFolder folder;
  refused("train_mode", [&] { const auto guard = engine.train_mode(); });
  refused("optimizer_zero_grad", [&] { engine.optimizer_zero_grad(); });
  refused("optimizer_step", [&] { engine.optimizer_step(); });
  refused("lr_scheduler_step", [&] { engine.lr_scheduler_step(); });
  refused("forward_backward_batch", [&] { engine.forward_backward_batch(batch, SftLoss{}); });
  refused("train_batch", [&] { engine.train_batch(batch, SftLoss{}); });
  refused("train_mini_batch", [&] { engine.train_mini_batch(batch, SftLoss{}, {.num_mini_batches = 1}); });
  refused("save_checkpoint", [&] { engine.save_checkpoint(folder.path().string(), {}); });
  refused("load_checkpoint", [&] { engine.load_checkpoint(folder.path().string()); });

  auto trains = Ready<optimizer::Fp32>();
  const auto guard = engine.eval_mode();
  CHECK(engine.infer_batch(batch, SftLoss{}).loss() == trains.infer_batch(batch, SftLoss{}).loss());
  CHECK(engine.logits(batch).equal(trains.logits(batch)));
  engine.to(c10::DeviceType::CPU);
  engine.save_hf_pretrained((folder / "out").string());
  CHECK(std::filesystem::exists(folder / "out" / "config.json"));
}

TEST_CASE("calls before initialize() say so, and do no harm") {
  auto engine = test::language_model<optimizer::Fp32>(fixture().folder);
  const auto batch = fixture().batch();
  const auto refused = [&](const char* name, auto&& call) {
    CAPTURE(name);
    CHECK(contains(error_of(call), "call initialize() first"));
  };
  refused("train_mode", [&] { const auto guard = engine.train_mode(); });
  refused("eval_mode", [&] { const auto guard = engine.eval_mode(); });
  refused("optimizer_zero_grad", [&] { engine.optimizer_zero_grad(); });
  refused("optimizer_step", [&] { engine.optimizer_step(); });
  refused("lr_scheduler_step", [&] { engine.lr_scheduler_step(); });
  refused("forward_backward_batch", [&] { engine.forward_backward_batch(batch, SftLoss{}); });
  refused("infer_batch", [&] { engine.infer_batch(batch); });
  refused("to", [&] { engine.to(c10::DeviceType::CPU); });
  refused("logits", [&] { engine.logits(batch); });
  refused("save_hf_pretrained", [&] { engine.save_hf_pretrained("never"); });
  refused("get_per_tensor_param", [&] { engine.get_per_tensor_param(); });
  engine.initialize();
  const auto guard = engine.train_mode();
  CHECK(engine.train_batch(batch, SftLoss{}).step.stepped);
}

TEST_CASE("engines compute on the CPU, and say so where another device is asked for") {
  EngineConfig config;
  config.device = c10::DeviceType::CUDA;
  auto engine = test::language_model<optimizer::Fp32>(fixture().folder, config);
  CHECK(
      error_of([&] { engine.initialize(); }) ==
      "EngineConfig::device is \"cuda\", but engines of this version compute on the CPU; leave it at that.");
}

TEST_CASE("train_batch is its parts, and moves no schedule") {
  auto parts = Ready<optimizer::Fp64>(), whole = Ready<optimizer::Fp64>();
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto batch = fixture().batch("train.", 4 * step, 4 * step + 4);
    parts.optimizer_zero_grad();
    const auto result = parts.forward_backward_batch(batch, SftLoss{});
    const auto outcome = parts.optimizer_step();
    const auto trained = whole.train_batch(batch, SftLoss{});
    CHECK(trained.loss() == result.loss());
    CHECK(trained.log_probs.equal(result.log_probs));
    CHECK(trained.step.stepped);
    CHECK(outcome.stepped);
    CHECK(trained.step.grad_norm == outcome.grad_norm);
    CHECK(trained.lr == 1e-3);
    CHECK(parts.param_buffer().values.equal(whole.param_buffer().values));
  }
  CHECK(whole.lr_scheduler().num_steps() == 0);
  // a padded batch as well
  const auto batch = fixture().batch();
  PaddedBatch padded;
  padded.input_ids = batch.input_ids.view({2, -1});
  padded.labels = batch.labels.view({2, -1});
  padded.loss_mask = batch.loss_mask.view({2, -1});
  CHECK(whole.train_batch(padded, SftLoss{}).log_probs.sizes() == padded.input_ids.sizes());
  parts.train_batch(batch, SftLoss{});
  CHECK(parts.param_buffer().values.equal(whole.param_buffer().values));
}

TEST_CASE("infer_batch leaves weights, gradients and the coming step alone") {
  auto engine = Ready<optimizer::Fp64>(), undisturbed = Ready<optimizer::Fp64>();
  const auto batch = fixture().batch();
  engine.optimizer_zero_grad();
  engine.forward_backward_batch(batch, SftLoss{});
  const auto grads = engine.optimizer().main_grads().clone(), values = engine.param_buffer().values.clone();
  engine.infer_batch(fixture().packed());
  engine.infer_batch(fixture().packed(), SftLoss{});
  auto masked = batch;
  masked.loss_mask = masked.loss_mask.mul(0.0);
  engine.infer_batch(masked, SftLoss{});
  engine.infer_batch(batch, [](const LossInput& input) -> LossTerms {
    return {{"entropy", input.log_probs.sum(), 1.0, false}};
  });
  CHECK(engine.optimizer().main_grads().equal(grads));
  CHECK(engine.param_buffer().values.equal(values));
  CHECK(engine.optimizer_step().stepped);
  undisturbed.train_batch(batch, SftLoss{});
  CHECK(engine.param_buffer().values.equal(undisturbed.param_buffer().values));
}

TEST_CASE("lr_scheduler_step returns the rate that the next step uses") {
  auto optimizer = test::adam(4e-3);
  scheduler::OptimizerParamSchedulerConfig schedule;
  schedule.max_lr = 4e-3;
  schedule.min_lr = 0;
  schedule.lr_decay_steps = 8;
  schedule.lr_decay_style = scheduler::LrDecayStyle::linear;
  LanguageModelEngine<parallel::Self, optimizer::Fp32> engine({fixture().folder, "", 1}, {}, optimizer,
                                                              schedule, test::self_context());
  engine.initialize();
  CHECK(engine.train_batch(fixture().batch(), SftLoss{}).lr == doctest::Approx(4e-3));
  CHECK(engine.lr_scheduler_step() == doctest::Approx(3.5e-3));
  CHECK(engine.lr_scheduler_step(3) == doctest::Approx(2e-3));
  CHECK(engine.train_batch(fixture().batch(), SftLoss{}).lr == doctest::Approx(2e-3));
  CHECK(engine.lr_scheduler().num_steps() == 4);
}

TEST_CASE(
    "mini-batches: a partition of each epoch, groups whole, the same however many ranks hold the batch") {
  std::mt19937_64 random(32);
  for (int trial = 0; trial < 200; ++trial) {
    CAPTURE(trial);
    const auto count = 1 + test::below(random, 14);
    Lengths one(static_cast<std::size_t>(count), 1);
    const bool grouped = trial % 3 == 0;
    Batch batch;
    batch.input_ids = zeros({count}, at::kLong);
    batch.cu_seqlens = test::borders(one);
    // groups of neighbours, so that a cut between ranks can spare them
    std::vector<std::int64_t> group;
    for (std::int64_t s = 0; s < count; ++s) group.push_back(s / 2 * 5);
    if (grouped) batch.groups = test::longs(group);
    MiniBatchConfig config;
    if (trial % 2 == 0)
      config.mini_batch_size = 2 + test::below(random, 5);
    else
      config.num_mini_batches = 1 + test::below(random, grouped ? (count + 1) / 2 : count);
    config.shuffle = trial % 5 != 0;
    config.seed = static_cast<std::uint64_t>(trial);
    const auto alone = units_of(batch, count).view({1, count});
    for (const std::int64_t epoch : {0, 1}) {
      const auto mini_batches = together(alone, config, epoch, {count});
      std::vector<int> seen(static_cast<std::size_t>(count));
      std::vector<std::size_t> home(static_cast<std::size_t>(count));
      for (std::size_t m = 0; m < mini_batches.size(); ++m) {
        if (config.mini_batch_size > 0)
          CHECK(static_cast<std::int64_t>(mini_batches[m].size()) <= config.mini_batch_size);
        CHECK_FALSE(mini_batches[m].empty());
        for (const auto s : mini_batches[m]) {
          ++seen[static_cast<std::size_t>(s)];
          home[static_cast<std::size_t>(s)] = m;
        }
      }
      CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
      if (config.num_mini_batches > 0)
        CHECK(static_cast<std::int64_t>(mini_batches.size()) == config.num_mini_batches);
      if (!grouped)  // as even as whole sequences allow
        for (std::size_t m = 1; m + (config.mini_batch_size > 0) < mini_batches.size(); ++m) {
          const auto one = static_cast<std::int64_t>(mini_batches[m].size());
          CHECK(std::abs(one - static_cast<std::int64_t>(mini_batches[0].size())) <= 1);
        }
      else
        for (std::int64_t s = 1; s < count; s += 2)
          CHECK(home[static_cast<std::size_t>(s)] == home[static_cast<std::size_t>(s - 1)]);

      const auto ranks = 2 + test::below(random, 3);
      Lengths held;
      std::int64_t taken = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        auto own = rank + 1 == ranks ? count - taken : test::below(random, count - taken + 1);
        if (grouped && rank + 1 < ranks) own -= own % 2;
        held.push_back(own);
        taken += own;
      }
      const auto longest = *std::max_element(held.begin(), held.end());
      auto units = zeros({ranks, longest}, at::kLong);
      std::int64_t first = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto own = held[static_cast<std::size_t>(rank)];
        units[rank].copy_(units_of(sequences_of(batch, first, first + own), longest));
        first += own;
      }
      CHECK(together(units, config, epoch, held) == mini_batches);
    }
  }
}

TEST_CASE("train_mini_batch: every epoch sees each sequence once, in an order of the seed alone") {
  const auto batch = numbered_batch(7);
  const auto run = [&](MiniBatchConfig config, std::vector<std::size_t>* sizes = nullptr) {
    auto engine = Ready<optimizer::Fp64>();
    Recorder recorder;
    const auto results = engine.train_mini_batch(batch, recorder, config);
    if (sizes)
      for (const auto& result : results) sizes->push_back(static_cast<std::size_t>(result.num_micro_batches));
    CHECK(engine.lr_scheduler().num_steps() == 1);
    return recorder.seen;
  };
  std::vector<std::size_t> sizes;
  const auto seen = run({.mini_batch_size = 3, .epochs = 3, .seed = 5}, &sizes);
  CHECK(sizes == std::vector<std::size_t>{3, 3, 1, 3, 3, 1, 3, 3, 1});
  REQUIRE(seen.size() == 21);
  std::vector<std::vector<std::int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    epochs.emplace_back(seen.begin() + 7 * epoch, seen.begin() + 7 * (epoch + 1));
    auto sorted = epochs.back();
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(run({.mini_batch_size = 3, .epochs = 3, .seed = 5}) == seen);
  CHECK(run({.mini_batch_size = 3, .epochs = 3, .seed = 6}) != seen);
  CHECK(run({.mini_batch_size = 3, .epochs = 2, .shuffle = false}) ==
        std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6});
  sizes.clear();
  CHECK(run({.num_mini_batches = 2, .shuffle = false}, &sizes) ==
        std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(sizes.size() == 2);
}

TEST_CASE("train_mini_batch is train_batch on each, at one learning rate") {
  const auto batch = numbered_batch(6);
  auto engine = Ready<optimizer::Fp64>(), by_hand = Ready<optimizer::Fp64>();
  Recorder recorder, other;
  const auto results =
      engine.train_mini_batch(batch, recorder, {.mini_batch_size = 2, .epochs = 2, .shuffle = false});
  REQUIRE(results.size() == 6);
  for (std::size_t m = 0; m < 6; ++m) {
    const auto first = static_cast<std::int64_t>(2 * (m % 3));
    const auto expected = by_hand.train_batch(sequences_of(batch, first, first + 2), other);
    CHECK(results[m].loss() == expected.loss());
    CHECK(results[m].step.stepped);
    CHECK(results[m].step.grad_norm == expected.step.grad_norm);
    CHECK(results[m].lr == 1e-3);
    CHECK(results[m].log_probs.equal(expected.log_probs));
  }
  CHECK(engine.param_buffer().values.equal(by_hand.param_buffer().values));
  CHECK(engine.lr_scheduler().num_steps() == 1);
}

TEST_CASE("mini-batches that name no size, or too small a one, are refused in words") {
  auto engine = Ready<optimizer::Fp32>();
  auto batch = numbered_batch(6);
  const auto refused = [&](const MiniBatchConfig& config) {
    Recorder recorder;
    return error_of([&] { engine.train_mini_batch(batch, recorder, config); });
  };
  CHECK(refused({}) ==
        "train_mini_batch: mini_batch_size is 0 and num_mini_batches is 0; set exactly one of them, "
        "to a positive number.");
  CHECK(contains(refused({.mini_batch_size = 2, .num_mini_batches = 3}),
                 "mini_batch_size is 2 and num_mini_batches is 3"));
  CHECK(contains(refused({.mini_batch_size = -2}), "mini_batch_size is -2"));
  CHECK(refused({.mini_batch_size = 2, .epochs = 0}) ==
        "train_mini_batch: epochs is 0; it must be positive.");
  CHECK(refused({.num_mini_batches = 7}) ==
        "train_mini_batch: num_mini_batches is 7, but the batch has 6 sequences or groups to deal out; ask "
        "for fewer "
        "mini-batches.");
  batch.groups = test::longs({1, 1, 1, 2, 2, 3});
  CHECK(refused({.mini_batch_size = 2}) ==
        "train_mini_batch: a group has 3 sequences, more than the 2 of a mini-batch; raise the mini-batch "
        "size or "
        "make smaller groups.");
  batch = sequences_of(numbered_batch(6), 0, 0);
  CHECK(refused({.mini_batch_size = 2}) == "train_mini_batch: the batch has no sequence on any rank.");
  CHECK(engine.lr_scheduler().num_steps() == 0);
}

TEST_CASE("fp16: overflows skip steps and halve the scale, then training goes on; no schedule moves") {
  auto optimizer = test::adam();
  optimizer.initial_loss_scale = 1099511627776.0;  // 2^40
  optimizer.hysteresis = 1;
  auto engine = Ready<optimizer::Fp16WithLossScaler>({}, optimizer);
  const auto before = engine.param_buffer().values.clone(), main = engine.param_buffer().main_params.clone();
  double scale = optimizer.initial_loss_scale;
  int skipped = 0;
  bool stepped = false;
  for (int step = 0; step < 60 && !stepped; ++step) {
    const auto result = engine.train_batch(fixture().batch(), SftLoss{});
    CHECK(result.step.loss_scale == scale);
    CHECK(std::isfinite(result.loss()));
    CHECK(result.lr == 1e-3);
    stepped = result.step.stepped;
    CHECK(result.step.found_inf == !stepped);
    if (stepped) {
      CHECK(std::isfinite(result.step.grad_norm));
      CHECK(result.step.grad_norm ==
            doctest::Approx(fixture().expected.tensor("grad_norm").item<float>()).epsilon(0.02));
    } else {
      CHECK(std::isnan(result.step.grad_norm));
      CHECK(engine.param_buffer().values.equal(before));
      CHECK(engine.param_buffer().main_params.equal(main));
      CHECK(engine.optimizer().inner().updates == 0);
      scale /= 2;
      ++skipped;
    }
    CHECK(engine.optimizer().loss_scale() == scale);
  }
  CHECK(stepped);
  CHECK(skipped > 3);
  CHECK(engine.optimizer().inner().updates == 1);
  CHECK_FALSE(engine.param_buffer().main_params.equal(main));
  CHECK(engine.lr_scheduler().num_steps() == 0);
}

TEST_CASE("fp16: a hysteresis of two lets one overflow pass, and skipped mini-batches move no schedule") {
  auto optimizer = test::adam();
  optimizer.initial_loss_scale = 1099511627776.0;
  auto engine = Ready<optimizer::Fp16WithLossScaler>({}, optimizer);
  const auto results = engine.train_mini_batch(fixture().batch(), SftLoss{}, {.num_mini_batches = 2});
  REQUIRE(results.size() == 2);
  CHECK(results[0].step.found_inf);
  CHECK(results[1].step.found_inf);
  CHECK(results[0].step.loss_scale == optimizer.initial_loss_scale);
  CHECK(results[1].step.loss_scale == optimizer.initial_loss_scale);
  CHECK(engine.optimizer().loss_scale() == optimizer.initial_loss_scale / 2);
  CHECK(engine.lr_scheduler().num_steps() == 0);
}

TEST_CASE("a NaN of the closure skips the step, and the next batch trains") {
  auto engine = Ready<optimizer::Fp32>(), clean = Ready<optimizer::Fp32>();
  const auto before = engine.param_buffer().values.clone();
  const auto result = engine.train_batch(fixture().batch(), [](const LossInput& input) -> LossTerms {
    return {{"loss", input.log_probs.sum().mul(std::numeric_limits<double>::quiet_NaN()), 1.0}};
  });
  CHECK(std::isnan(result.loss()));
  CHECK(result.step.found_inf);
  CHECK_FALSE(result.step.stepped);
  CHECK(engine.param_buffer().values.equal(before));
  CHECK(engine.train_batch(fixture().batch(), SftLoss{}).step.stepped);
  clean.train_batch(fixture().batch(), SftLoss{});
  CHECK(engine.param_buffer().values.equal(clean.param_buffer().values));
}

TEST_CASE("A4: nothing supervised: no NaN anywhere, nothing changes, one line of warning a step") {
  auto optimizer = test::adam();
  optimizer.weight_decay = 0;
  auto engine = Ready<optimizer::Fp32>({}, optimizer);
  auto clean = Ready<optimizer::Fp32>({}, optimizer);
  const auto before = engine.param_buffer().values.clone();
  auto batch = fixture().batch();
  batch.loss_mask = batch.loss_mask.mul(0.0);
  test::TemporaryFolder folder;
  std::fflush(stderr);
  const int saved = ::dup(2);
  REQUIRE(std::freopen((folder / "stderr").c_str(), "w", stderr) != nullptr);
  const auto result = engine.train_batch(test::in_micro_batches_of(batch, 1), SftLoss{});
  std::fflush(stderr);
  ::dup2(saved, 2);
  ::close(saved);
  CHECK(test::read_file(folder / "stderr") ==
        "mgfl: warning: no token of this batch counts in the loss: its gradients are zero and its step is "
        "skipped.\n");
  CHECK(result.loss() == 0.0);
  CHECK_FALSE(result.step.stepped);
  CHECK_FALSE(result.step.found_inf);
  CHECK(result.step.grad_norm == 0.0);
  CHECK(result.log_probs.isfinite().all().item<bool>());
  CHECK(largest_grad(engine) == 0.0);
  CHECK(engine.param_buffer().values.equal(before));
  CHECK(engine.optimizer().inner().exp_avg.abs().max().item<float>() == 0.0f);
  CHECK(engine.optimizer().inner().exp_avg_sq.abs().max().item<float>() == 0.0f);
  CHECK(engine.optimizer().inner().updates == 0);
  // the next batch trains as if nothing had been
  engine.train_batch(fixture().batch(), SftLoss{});
  clean.train_batch(fixture().batch(), SftLoss{});
  CHECK(engine.param_buffer().values.equal(clean.param_buffer().values));
}
