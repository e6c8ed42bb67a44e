// Engines on tensor-parallel and data-parallel ranks: what they export and save is what one rank would, and
// each goes on from the other's checkpoint.
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policies/rl/losses.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/mpi/shared_folder.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using bridge::HfWeights;
using mgfl_test::files_of;
using mgfl_test::Mpi;
using mgfl_test::same_bits;
using mgfl_test::SharedFolder;
using test::Fixture;

namespace {

/// An initialized engine and the groups it borrows.
template <class E>
struct Made {
  Made(int tp, const ModelConfig& model, EngineConfig config = {})
      : state(Mpi(mgfl_test::session()), sizes_with(tp)),
        engine(model, config, settings(), test::constant_schedule(1e-3, 0.1), state.context()) {
    engine.initialize();
  }
  static parallel::ModelParallelSizes sizes_with(int tp) {
    parallel::ModelParallelSizes sizes;
    sizes.tensor_model_parallel_size = tp;
    return sizes;
  }
  static optimizer::OptimizerConfig settings() {
    auto config = test::adam();
    config.initial_loss_scale = 65536;
    return config;
  }
  parallel::ParallelState<Mpi> state;
  E engine;
};

template <class Engine>
std::map<std::string, Tensor> weights_of(Engine& engine) {
  std::map<std::string, Tensor> weights;
  for (const auto& [name, tensor] : engine.get_per_tensor_param().params) weights[name] = tensor.clone();
  return weights;
}

/// As many as this world has ranks for, dp being what remains.
std::vector<int> sizes(const Mpi& world) {
  std::vector<int> found;
  for (const int tp : {1, 2, 4})
    if (world.size() % tp == 0) found.push_back(tp);
  return found;
}

}  // namespace

TEST_CASE_TEMPLATE("an engine on any layout exports the folder that it was loaded from", P, optimizer::Fp32,
                   optimizer::Bf16WithFp32Main) {
  Mpi world(mgfl_test::session());
  for (const char* name : {"qwen2", "qwen3"}) {
    CAPTURE(name);
    const Fixture fixture(name);
    const HfWeights source(fixture.folder);
    const auto check = [&](auto&& engine) {
      const SharedFolder folder(world);
      engine.save_hf_pretrained((folder.path / "out").string());
      const HfWeights saved(folder.path / "out");
      const auto weights = weights_of(engine);
      CHECK(weights.size() == source.names().size());
      CHECK(saved.names().size() == source.names().size());
      const bool forward_only = engine.engine_config().forward_only;
      for (const auto& part : source.names()) {
        CAPTURE(part);
        const auto rounded = source.tensor(part).to(P::model_dtype);
        CHECK(same_bits(weights.at(part), rounded));
        CHECK(same_bits(saved.tensor(part),
                        forward_only ? rounded.to(source.dtype(part)) : source.tensor(part)));
      }
    };
    for (const int tp : sizes(world)) {
      CAPTURE(tp);
      check(Made<LanguageModelEngine<Mpi, P>>(tp, {fixture.folder, "", 1}).engine);
      check(Made<LanguageModelEngine<Mpi, P, optimizer::Distributed>>(tp, {fixture.folder, "", 1}).engine);
      EngineConfig forward_only;
      forward_only.forward_only = true;
      check(Made<LanguageModelEngine<Mpi, P>>(tp, {fixture.folder, "", 1}, forward_only).engine);
    }
  }
}

TEST_CASE_TEMPLATE("a run of one rank goes on in any layout, and back: the same files, the same weights", P,
                   optimizer::Fp64, optimizer::Bf16WithFp32Main) {
  Mpi world(mgfl_test::session());
  const Fixture fixture("qwen3");
  auto alone = test::language_model<P>(fixture.folder, {}, Made<LanguageModelEngine<Mpi, P>>::settings());
  alone.initialize();
  for (std::int64_t step = 0; step < 2; ++step) {
    alone.train_batch(fixture.batch("train.", 4 * step, 4 * step + 4), SftLoss{});
    alone.lr_scheduler_step();
  }
  const SharedFolder folder(world);
  const auto place = [&](const std::string& name) { return (folder.path / name).string(); };
  const TrainingPosition position{2, 8};
  if (world.rank() == 0) alone.save_checkpoint(place("alone"), position);
  world.barrier();
  const auto files = files_of(place("alone"));
  const auto weights = weights_of(alone);
  const auto check = [&](auto&& engine, const std::string& name) {
    CAPTURE(name);
    const auto found = engine.load_checkpoint(place("alone"));
    CHECK(found.iteration == 2);
    CHECK(found.consumed_samples == 8);
    const auto others = weights_of(engine);
    CHECK(others.size() == weights.size());
    for (const auto& [part, tensor] : weights) CHECK(same_bits(others.at(part), tensor));
    engine.save_checkpoint(place(name), position);
    CHECK(files_of(place(name)) == files);
    engine.save_hf_pretrained(place(name + "-hf"));
    const HfWeights saved(place(name + "-hf"));
    for (const auto& [part, tensor] : weights)
      CHECK(same_bits(saved.tensor(part).to(P::model_dtype), tensor));

    // A step from there is the lone engine's, and so are its optimizer's states.
    const int dp = engine.get_data_parallel_size(), rank = engine.get_data_parallel_rank();
    const auto batch = fixture.batch("train.", 8, 12);
    engine.train_batch(sequences_of(batch, 4 * rank / dp, 4 * (rank + 1) / dp), SftLoss{});
    auto reference =
        test::language_model<P>(fixture.folder, {}, Made<LanguageModelEngine<Mpi, P>>::settings());
    reference.initialize();
    reference.load_checkpoint(place("alone"));
    reference.train_batch(batch, SftLoss{});
    const double bound = std::is_same_v<P, optimizer::Fp64> ? 1e-10 : 2e-2;
    const auto mine = weights_of(engine), theirs = weights_of(reference);
    for (const auto& [part, tensor] : theirs) CHECK(test::max_difference(mine.at(part), tensor) < bound);
    auto moment = engine.optimizer().whole_params(engine.optimizer().inner().exp_avg_sq);
    auto expected = reference.optimizer().whole_params(reference.optimizer().inner().exp_avg_sq);
    for (std::size_t i = 0; i < moment.params().size(); ++i) {
      engine.optimizer().gather(moment, i);
      if (world.rank() > 0) continue;
      const auto &own = *moment.params()[i].value, &other = *expected.params()[i].value;
      const auto rows = std::min(own.size(0), other.size(0));  // paddings may differ
      CHECK(test::max_difference(own.narrow(0, 0, rows), other.narrow(0, 0, rows)) < bound);
    }
  };
  for (const int tp : sizes(world)) {
    check(Made<LanguageModelEngine<Mpi, P>>(tp, {fixture.folder, "", 1}).engine, concat("local", tp));
    check(Made<LanguageModelEngine<Mpi, P, optimizer::Distributed>>(tp, {fixture.folder, "", 1}).engine,
          concat("distributed", tp));
    auto back = test::language_model<P>(fixture.folder, {}, Made<LanguageModelEngine<Mpi, P>>::settings());
    back.initialize();
    back.load_checkpoint(place(concat("distributed", tp)));
    for (const auto& [part, tensor] : weights_of(back)) CHECK(same_bits(weights.at(part), tensor));
  }
}

TEST_CASE("random weights, and a critic's new head, are the same on every layout") {
  Mpi world(mgfl_test::session());
  const Fixture fixture("qwen3");
  const auto check = [&](auto&& engine, auto& alone) {
    const auto expected = weights_of(alone);
    for (const auto& [part, tensor] : weights_of(engine)) {
      CAPTURE(part);
      CHECK(same_bits(expected.at(part), tensor));
    }
  };
  auto random = LanguageModelEngine<parallel::Self, optimizer::Fp32>(
      {"", fixture.folder + "/config.json", 7}, {}, test::adam(), test::constant_schedule(1e-3, 0.1),
      test::self_context());
  random.initialize();
  auto critic = test::value_model<optimizer::Fp32>(fixture.folder);
  critic.initialize();
  for (const int tp : sizes(world)) {
    CAPTURE(tp);
    check(
        Made<LanguageModelEngine<Mpi, optimizer::Fp32>>(tp, {"", fixture.folder + "/config.json", 7}).engine,
        random);
    Made<ValueModelEngine<Mpi, optimizer::Fp32>> made(tp, {fixture.folder, "", 1});
    check(made.engine, critic);
    // Saved and loaded again, the head is the same.
    const SharedFolder folder(world);
    made.engine.save_checkpoint((folder.path / "saved").string(), {1, 1});
    Made<ValueModelEngine<Mpi, optimizer::Fp32>> other(tp, {fixture.folder, "", 5});
    other.engine.load_checkpoint((folder.path / "saved").string());
    check(other.engine, critic);
  }
}
