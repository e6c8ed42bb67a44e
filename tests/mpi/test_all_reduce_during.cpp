// Tensor-parallel groups of a communicator that can reduce beside other work: what runs meanwhile, that its
// end is waited for, and that an engine's numbers are those of the communicator that cannot.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "tests/mpi/late_mpi.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/support/engines.hpp"

using namespace mgfl;
using mgfl_test::LateMpi;
using mgfl_test::Mpi;
using test::Fixture;
using test::max_difference;
using test::numbers;

namespace {

template <parallel::Communicator C>
struct Trained {
  explicit Trained(C world)
      : state(std::move(world), {.tensor_model_parallel_size = mgfl_test::session().size()}) {}

  parallel::ParallelState<C> state;
  std::unique_ptr<LanguageModelEngine<C, optimizer::Fp32>> engine;
  double mean_loss = 0;
  std::vector<double> log_probs, gradients, values;  // the gradients of one batch, the values after a step

  void start(const Fixture& fixture) {
    EngineConfig config;
    config.micro_batch_size = 1;
    const auto optimizer = test::adam();
    engine = std::make_unique<LanguageModelEngine<C, optimizer::Fp32>>(
        ModelConfig{fixture.folder, "", 1}, config, optimizer,
        test::constant_schedule(optimizer.lr, optimizer.weight_decay), state.context());
    engine->initialize();
  }
  void forward_backward(const Fixture& fixture) {
    const auto result = engine->forward_backward_batch(fixture.batch(), SftLoss{});
    mean_loss = result.loss();
    log_probs = numbers(result.log_probs);
    gradients = numbers(engine->optimizer().main_grads());
  }
  void step() {
    CHECK(engine->optimizer_step().stepped);
    values = numbers(engine->param_buffer().values);
  }
};

/// Gradients under their Hugging Face names, whole, on the first rank. Collective.
template <class Engine>
std::map<std::string, Tensor> whole_gradients(Engine& engine) {
  std::map<std::string, Tensor> found;
  auto whole = engine.optimizer().whole_params(engine.optimizer().main_grads());
  for (std::size_t i = 0; i < whole.params().size(); ++i) {
    engine.optimizer().gather(whole, i);
    if (engine.context().world->rank() > 0) continue;
    const auto& param = whole.params()[i];
    for (const auto& [name, shape, view] : bridge::hf_tensors(engine.config(), *param.desc, *param.value))
      found[name] = view.reshape(shape).clone();
  }
  return found;
}

/// The names of the parameters whose gradients differ.
template <class Buffer>
std::vector<std::string> changed(const Buffer& buffer, const Tensor& before, const Tensor& after) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    if (!buffer.view(before, i).equal(buffer.view(after, i))) names.push_back(buffer.params[i].desc->name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("the work runs between the start of a reduction and its end") {
  const auto log = std::make_shared<LateMpi::Log>();
  LateMpi world(Mpi(mgfl_test::session()), log);
  const parallel::TensorParallelGroup group(world);
  for (const bool of_floats : {true, false}) {
    log->events.clear();
    auto sum = test::doubles({1.5, -2.0, 0.25}).mul(world.rank() + 1);
    if (of_floats) sum = sum.to(at::kFloat);
    const auto expected = test::doubles({1.5, -2.0, 0.25}).mul(world.size() * (world.size() + 1) / 2);
    group.all_reduce_during(sum, [&] {
      log->add("work");
      CHECK(std::isnan(sum[0].item<double>()));
    });
    CHECK(log->events == std::vector<std::string>{"start", "work", "wait"});
    CHECK(max_difference(sum, expected) == 0);
  }
  CHECK(log->disturbed == 0);

  // A group that cannot: the sum comes first.
  Mpi plain(mgfl_test::session());
  auto sum = test::doubles({1.0});
  bool ran = false;
  parallel::TensorParallelGroup(plain).all_reduce_during(sum, [&] {
    ran = true;
    CHECK(sum[0].item<double>() == plain.size());
  });
  CHECK(ran);
}

TEST_CASE("a column-parallel layer's weight gradients are made while its input's gradient is summed") {
  for (const std::string name :
       {"qwen2", "qwen3"}) {  // with biases of the column-parallel layers, and without
    CAPTURE(name);
    const Fixture fixture(name);
    const auto log = std::make_shared<LateMpi::Log>();
    Trained<LateMpi> late(LateMpi(Mpi(mgfl_test::session()), log));
    Trained<Mpi> plain{Mpi(mgfl_test::session())};
    late.start(fixture);
    plain.start(fixture);
    log->watched = late.engine->optimizer().main_grads();
    late.forward_backward(fixture);
    plain.forward_backward(fixture);

    // Bit for bit what a communicator without it gives.
    CHECK(late.mean_loss == plain.mean_loss);
    CHECK(late.log_probs == plain.log_probs);
    CHECK(late.gradients == plain.gradients);

    // The recorded numbers of one rank.
    const auto& expected = fixture.expected;
    CHECK(std::abs(late.mean_loss - expected.tensor("mean_loss").item<double>()) < 1e-5);
    const auto found = whole_gradients(*late.engine);
    CHECK((found.size() > 20) == (late.state.world().rank() == 0));
    for (const auto& [name_in_file, gradient] : found) {
      const auto& weight = name_in_file;  // Clang 14 captures no structured binding
      CAPTURE(weight);
      const auto wanted = expected.tensor("grad." + weight);
      CHECK(max_difference(gradient, wanted) < test::gradient_bound(wanted));
    }

    // One reduction for each column-parallel layer, from the last one to the first, in each micro-batch; what
    // changes meanwhile is that layer's gradients, and no other's.
    const auto layers = late.engine->config().num_layers;
    const auto micro_batches = fixture.batch().num_sequences();
    REQUIRE(micro_batches > 1);
    REQUIRE(log->events.size() == static_cast<std::size_t>(4 * layers * micro_batches));
    REQUIRE(log->seen.size() == log->events.size());
    std::size_t event = 0;
    for (std::int64_t i = 0; i < micro_batches; ++i)
      for (std::int64_t layer = layers - 1; layer >= 0; --layer)
        for (const auto* linear : {"mlp.linear_fc1", "self_attention.linear_qkv"}) {
          const auto path = concat("decoder.layers.", layer, ".", linear);
          CAPTURE(path);
          CHECK(log->events[event] == "start");
          CHECK(log->events[event + 1] == "wait");
          std::vector<std::string> own;
          for (const auto& param : late.engine->param_buffer().params)
            if (param.desc->name == path + ".bias" || param.desc->name == path + ".weight")
              own.push_back(param.desc->name);
          CHECK(!own.empty());
          std::sort(own.begin(), own.end());
          CHECK(changed(late.engine->param_buffer(), log->seen[event], log->seen[event + 1]) == own);
          event += 2;
        }
    CHECK(log->disturbed == 0);

    log->watched = Tensor();
    late.step();
    plain.step();
    CHECK(late.values == plain.values);
  }
}
