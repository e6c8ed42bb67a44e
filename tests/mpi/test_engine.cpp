// The engine on several data-parallel ranks against the recorded numbers of one.
#include "tests/support/mpi.hpp"

#include "tests/support/fixture.hpp"

#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/engine/megatron_engine.hpp"

using namespace mgfl;
using test::Fixture;
using test::max_difference;

namespace {

/// This rank's groups, for one test.
struct Groups {
  parallel::Mpi world{mgfl_test::session()};
  parallel::Mpi alone = world.split(world.rank(), 0, "alone");
};

template <class P>
using MpiEngine = LanguageModelEngine<parallel::Mpi, P>;

template <class P>
MpiEngine<P> make_engine(const Fixture& fixture, Groups& groups) {
  optimizer::OptimizerConfig optimizer;
  optimizer.lr = 1e-3;
  optimizer.adam_beta2 = 0.95;
  optimizer.weight_decay = 0.1;
  return MpiEngine<P>({fixture.folder, "", 1}, {}, optimizer, test::constant_schedule(1e-3, 0.1),
                      parallel::data_parallel_context(groups.world, groups.alone));
}

/// Sequences of this rank: contiguous shares, possibly none.
Batch share(const Batch& batch, const parallel::Mpi& world) {
  const auto n = batch.num_sequences();
  return sequences_of(batch, n * world.rank() / world.size(), n * (world.rank() + 1) / world.size());
}

/// The same bits on every rank.
bool same_everywhere(Tensor values, parallel::Mpi& world) {
  auto first = values.clone();
  world.broadcast(first, 0);
  auto differs = zeros({1}, at::kInt).fill_(values.equal(first) ? 0 : 1);
  world.all_reduce(differs, ReduceOp::max);
  return differs.item<int>() == 0;
}

}  // namespace

TEST_CASE("Fp64: loss, gradients and three steps of every rank are those of one rank") {
  Groups groups;
  for (const auto* name : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const Fixture fixture(name);
    const checkpoint::SafetensorsFile expected(fixture.folder + "/expected64.safetensors");
    auto engine = make_engine<optimizer::Fp64>(fixture, groups);
    engine.initialize();
    const auto result = engine.forward_backward_batch(share(fixture.batch(), groups.world), SftLoss{});
    CHECK(std::abs(result.loss() - expected.tensor("mean_loss").item<double>()) < 1e-10);
    for (const auto& param : engine.param_buffer().params)
      for (const auto& part : bridge::hf_tensors(engine.config(), *param.desc, *param.main_grad)) {
        CAPTURE(part.name);
        CHECK(max_difference(part.view.reshape(part.shape), expected.tensor("grad." + part.name)) < 1e-10);
      }
    for (std::int64_t step = 0; step < 3; ++step) {
      engine.optimizer_zero_grad();
      const auto batch = fixture.batch("train.", 4 * step, 4 * step + 4);
      const auto trained = engine.forward_backward_batch(share(batch, groups.world), SftLoss{});
      CHECK(std::abs(trained.loss() - expected.tensor("train.loss")[step].item<double>()) < 1e-10);
      CHECK(std::abs(engine.optimizer_step().grad_norm -
                     expected.tensor("train.grad_norm")[step].item<double>()) < 1e-10);
      engine.lr_scheduler_step(4);
    }
    for (const auto& param : engine.param_buffer().params)
      for (const auto& part : bridge::hf_tensors(engine.config(), *param.desc, *param.value)) {
        CAPTURE(part.name);
        CHECK(max_difference(part.view.reshape(part.shape), expected.tensor("step3." + part.name)) < 1e-10);
      }
    CHECK(same_everywhere(engine.param_buffer().values, groups.world));
  }
}

TEST_CASE("unlike token counts on the ranks share one division") {
  // Toy: the loss of a token is w * a. Over all ranks 35 / 11, whoever holds which sequences.
  Groups groups;
  const Fixture fixture("llama");
  auto engine = make_engine<optimizer::Fp32>(fixture, groups);
  engine.initialize();
  const float values[] = {1, 2, 3, 10, 0.5, 0.5, 0.5, 0.5, 2, 7, 8};
  const std::int32_t borders[] = {0, 3, 4, 9, 11};
  auto batch = sequences_of(fixture.batch(), 0, 1);
  batch = {batch.input_ids.narrow(0, 0, 11).contiguous(),
           batch.labels.narrow(0, 0, 11).contiguous(),
           zeros({11}, at::kFloat).fill_(1.0),
           zeros({5}, at::kInt),
           {},
           {}};
  std::copy(borders, borders + 5, batch.cu_seqlens.data_ptr<std::int32_t>());
  const auto first_sequence = 4 * groups.world.rank() / groups.world.size();
  std::int64_t seen = borders[first_sequence];
  const auto toy = [&](const LossInput& input) -> LossTerms {
    auto a = zeros({input.batch.num_tokens()}, at::kFloat);
    for (std::int64_t t = 0; t < a.numel(); ++t) a.data_ptr<float>()[t] = values[seen++];
    return {{"loss", a.sum(), static_cast<double>(a.numel())}};
  };
  CHECK(engine.forward_backward_batch(share(batch, groups.world), toy, true).loss() ==
        doctest::Approx(35.0 / 11.0).epsilon(1e-7));
}

TEST_CASE("a rank without supervised tokens, or without tokens, adds nothing") {
  Groups groups;
  const Fixture fixture("qwen3");
  parallel::Self self_world, self_alone;
  for (const bool empty_share : {false, true}) {
    auto engine = make_engine<optimizer::Fp64>(fixture, groups);
    engine.initialize();
    auto batch = fixture.batch();
    const bool last = groups.world.rank() == groups.world.size() - 1;
    auto mine = last ? sequences_of(batch, 0, 1) : sequences_of(batch, 1, empty_share ? 1 : 2);
    if (!last && !empty_share) mine.loss_mask = mine.loss_mask.clone().zero_();
    const auto result = engine.forward_backward_batch(mine, SftLoss{});

    LanguageModelEngine<parallel::Self, optimizer::Fp64> single(
        {fixture.folder, "", 1}, {}, {}, test::constant_schedule(0, 0),
        parallel::data_parallel_context(self_world, self_alone));
    single.initialize();
    const auto expected = single.forward_backward_batch(sequences_of(batch, 0, 1), SftLoss{});
    CHECK(result.loss() == doctest::Approx(expected.loss()).epsilon(1e-13));
    CHECK(max_difference(engine.optimizer().main_grads(), single.optimizer().main_grads()) < 1e-13);
  }
}

TEST_CASE("a non-finite gradient on one rank skips the step on all") {
  Groups groups;
  const Fixture fixture("llama");
  auto engine = make_engine<optimizer::Fp32>(fixture, groups);
  engine.initialize();
  const auto before = engine.param_buffer().values.clone();
  engine.forward_backward_batch(share(fixture.batch(), groups.world), SftLoss{});
  if (groups.world.rank() == groups.world.size() - 1)
    engine.module().final_layernorm.main_grad.fill_(std::numeric_limits<float>::quiet_NaN());
  const auto outcome = engine.optimizer_step();
  CHECK(outcome.found_inf);
  CHECK_FALSE(outcome.stepped);
  CHECK(max_difference(engine.param_buffer().values, before) == 0.0);
}
