// The C++ of docs/engine.md and docs/override.md, compiled as printed, and run where it says what happens: a
// line "block: HEADING" stands for that section's next block.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "acme/engine/build_optimizer.hpp"
#include "acme/engine/fast.hpp"
#include "mgfl/policy/static_model.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/tensor_of.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/engine/registered_engines.hpp"
#include "policies/model/generation.hpp"
#include "policies/parallel/run.hpp"
#include "policies/rl/advantages.hpp"
#include "policies/rl/losses.hpp"
#include "policies/rl/rollout.hpp"
#include "policies/tensor_parallel/random.hpp"
#include "policies/weight_sync/receiver.hpp"
#include "policies/weight_sync/sender.hpp"
#include "tests/support/doctest.hpp"

namespace life {
// block: Life of an engine
}  // namespace life

namespace losses {
// block: Losses and metrics
}  // namespace losses

namespace layouts {
// block: Layouts
}  // namespace layouts

namespace chosen {
// block: Choosing an engine by name
}  // namespace chosen

namespace {

using namespace mgfl;
using Lists = std::vector<std::vector<std::int64_t>>;
using Alone = LanguageModelEngine<parallel::Self, optimizer::Fp64>;

const char* const folder = MGFL_TEST_DATA "/qwen3";

struct Job {
  parallel::Self world, alone;
  parallel::Context<parallel::Self> context = parallel::data_parallel_context(world, alone);
};

}  // namespace

TEST_CASE("life of an engine") {
  const auto place = std::filesystem::temp_directory_path() / "mgfl-engine-guide";
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directories(place);
  std::filesystem::current_path(place);
  Job job;
  CHECK(life::train(job.context, folder) == 0);
  std::filesystem::current_path(before);
  CHECK(std::filesystem::exists(place / "out" / "config.json"));
  std::filesystem::remove_all(place);
}

TEST_CASE("layouts") {
  static_assert(parallel::ParallelPolicy<layouts::Checked> &&
                layouts::Checked::tensor_model_parallel_size == 2);
  CHECK_NOTHROW(parallel::check_model_fits<layouts::Checked>(layouts::qwen3_8b, {.tp = 2, .dp = 3}));
  CHECK(layouts::main_of_two_by_n() == 1);  // a process alone has no second rank
}

TEST_CASE("batches, losses and metrics") {
  // block: Batches
  Job job;
  Alone engine({folder}, {}, {}, scheduler::constant_schedule(1e-5), job.context);
  engine.initialize();
  const auto result = engine.train_batch(batch, losses::focal);
  CHECK(result.step.stepped);
  CHECK(result.metric("hardest token") > 0);
  CHECK(result.metric("my number") == 0.5);
  CHECK(table.sum().item<float>() == 6);

  auto hot = batch;  // logits are not divided by the temperature
  hot.temperature = zeros({1}, at::kDouble).fill_(3.0);
  CHECK(engine.logits(hot).equal(engine.logits(batch)));
  CHECK(!engine.infer_batch(hot).log_probs.equal(engine.infer_batch(batch).log_probs));
}

TEST_CASE("reinforcement learning") {
  Job job;
  Alone actor({folder}, {}, {}, scheduler::constant_schedule(1e-5), job.context);
  actor.initialize();
  EngineConfig forward_only;
  forward_only.forward_only = true;
  Alone reference({folder}, forward_only, {}, scheduler::constant_schedule(1e-5), job.context);
  reference.initialize();
  const Lists prompts{{1, 5}, {1, 5}, {2, 7, 8}, {2, 7, 8}}, responses{{9, 4}, {3}, {6, 5, 4}, {10, 11}};
  const std::vector<double> scores{1, 0, 0.5, 2};
  const std::vector<std::int64_t> index{0, 0, 1, 1};
  // block: Reinforcement learning
  CHECK(actor.infer_batch(batch, loss).metric("actor/entropy_loss") > 0);
}

TEST_CASE("random streams") {
  const std::uint64_t seed = 42;
  const int tp_rank = 1;
  Tensor hidden = zeros({4, 8}, at::kFloat), heads = zeros({4, 8}, at::kFloat);
  // block: Random numbers
  CHECK(states.at("default").position == 32);
  CHECK(states.at("model-parallel-rng") == tensor_parallel::RngState{2761, 32});
  CHECK_FALSE(hidden.equal(heads));
}

// Compiled only: one process has nobody to send to.
void sync_weights(Alone& engine, parallel::Self& world, void (*load)(const std::string&, const Tensor&)) {
  // block: Weight sync
}

TEST_CASE("a vendor's engine and its step") {
  static_assert(std::is_same_v<chosen::Actor, MegatronEngineWithLMHead<chosen::P, chosen::O, chosen::S>>);
  using P = parallel::DataParallel<parallel::Self>;
  using O = optimizer::Local<optimizer::AdamW, optimizer::Fp64>;
  using Fast = acme::fast::engine<P, O, chosen::S>;
  Job job;
  Fast engine({folder}, {}, {}, scheduler::constant_schedule(1e-5), job.context);
  engine.initialize();
  const auto batch = batch_of(Lists{{1, 2, 3}});
  engine.train_batch(batch, SftLoss{});
  CHECK(engine.steps == 0);
  engine.optimizer_zero_grad();
  engine.forward_backward_batch(batch, SftLoss{});
  engine.optimizer_step();
  CHECK(engine.steps == 1);

  CHECK(engine.optimizer().param_groups.back().wd_mult == 0);
  implementation<targets::build_optimizer, vendors::acme>::call<Alone>(engine);
  CHECK(engine.optimizer().param_groups.back().wd_mult == 1);
}
