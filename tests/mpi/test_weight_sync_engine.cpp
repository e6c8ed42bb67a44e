// The engine's own range of weights goes over the wire after each step, and an engine that starts from the
// rebuilt folder is the one that was trained.
#include "mgfl/tensor/lean.hpp"

#include "tests/support/fixture.hpp"

#include "policies/bridge/hf_tensors.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/weight_sync/receiver.hpp"
#include "policies/weight_sync/sender.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mpi.hpp"

using namespace mgfl;

namespace {

using Precision = optimizer::Bf16WithFp32Main;

/// An engine of this rank alone, as every rank makes and trains it.
struct Trained {
  explicit Trained(const std::string& folder)
      : engine({folder, "", 1}, {}, settings(), test::constant_schedule(1e-3, 0.1),
               parallel::data_parallel_context(world, alone)) {
    engine.initialize();
  }

  static optimizer::OptimizerConfig settings() {
    optimizer::OptimizerConfig config;
    config.lr = 1e-3;
    return config;
  }

  void step(const Batch& batch) {
    engine.optimizer_zero_grad();
    engine.forward_backward_batch(batch, SftLoss{});
    REQUIRE(engine.optimizer_step().stepped);
  }

  parallel::Self world, alone;
  LanguageModelEngine<parallel::Self, Precision> engine;
};

}  // namespace

TEST_CASE("after each step the engine's weights arrive as they are, and another engine goes on from them") {
  parallel::Mpi world(mgfl_test::session());
  const test::Fixture fixture("qwen3");
  Trained trained(fixture.folder);
  const test::TemporaryFolder work;
  double last_loss = 0;
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    trained.step(fixture.batch());
    auto range = trained.engine.get_per_tensor_param().params;
    if (world.rank() == 0) {
      const weight_sync::FolderPlan plan{range.specs(), trained.engine.bridge().config_json(at::kBFloat16)};
      weight_sync::send_hf_folder(range, plan, world, {10000});
      weight_sync::send_weights(range, world);
      continue;
    }
    weight_sync::receive_hf_folder(world, 0, work / "model");
    const bridge::HfWeights rebuilt(work / "model");
    std::size_t tensors = 0;
    for (const auto& param : trained.engine.param_buffer().params)
      for (const auto& part : bridge::hf_tensors(trained.engine.config(), *param.desc, *param.value)) {
        CAPTURE(part.name);
        ++tensors;
        REQUIRE(rebuilt.has(part.name));
        CHECK((rebuilt.dtype(part.name) == at::kBFloat16));
        CHECK(rebuilt.tensor(part.name).equal(part.view.reshape(part.shape)));
      }
    CHECK(rebuilt.names().size() >= tensors);  // a tied head may come beside its embedding
    weight_sync::receive_weights(world, 0, [&](const std::string& name, const Tensor& tensor) {
      CHECK(tensor.equal(rebuilt.tensor(name)));
    });

    Trained other((work / "model").string());
    const double loss = other.engine.forward_backward_batch(fixture.batch(), SftLoss{}, true).loss();
    CHECK(loss == trained.engine.forward_backward_batch(fixture.batch(), SftLoss{}, true).loss());
    CHECK(loss != last_loss);
    last_loss = loss;
  }
}
