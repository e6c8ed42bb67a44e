// Tensor and sequence parallelism beside the layout matrix: replicated weights, the vocabulary's edges, heads
// and their outputs, skipped steps, generation, and what ranks that disagree are told.
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "mgfl/parallel/share.hpp"
#include "policies/model/generation.hpp"
#include "policies/rl/losses.hpp"
#include "policies/tensor_parallel/cross_entropy.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using mgfl_test::same_bits_everywhere;
using test::contains;
using test::error_of;
using test::Fixture;
using test::max_difference;
using test::numbers;

namespace {

/// All ranks as one grid.
struct Grid : RankGroups {
  explicit Grid(int tp) : state(Mpi(mgfl_test::session()), {.tensor_model_parallel_size = tp}) {}
  parallel::ParallelState<Mpi> state;
  int tp() { return state.context().extents.tp; }
};

EngineConfig with_sequence_parallel(bool on, std::int64_t divisor = 1) {
  EngineConfig config;
  config.micro_batch_size = 2;
  config.sequence_parallel = on;
  config.make_vocab_size_divisible_by = divisor;
  return config;
}

/// An initialized engine of all ranks.
template <class E>
std::unique_ptr<E> engine_on(Grid& grid, const ModelConfig& source, EngineConfig config = {},
                             optimizer::OptimizerConfig optimizer = test::adam()) {
  auto engine = std::make_unique<E>(source, config, optimizer,
                                    test::constant_schedule(optimizer.lr, optimizer.weight_decay),
                                    grid.state.context());
  engine->initialize();
  return engine;
}
template <class E>
std::unique_ptr<E> engine_on(Grid& grid, const Fixture& fixture, EngineConfig config = {},
                             optimizer::OptimizerConfig optimizer = test::adam()) {
  return engine_on<E>(grid, ModelConfig{fixture.folder, "", 1}, config, optimizer);
}

/// The same engine in this process alone.
template <class P>
std::unique_ptr<LanguageModelEngine<parallel::Self, P>> alone(const ModelConfig& source,
                                                              EngineConfig config = {}) {
  const auto optimizer = test::adam();
  auto engine = std::make_unique<LanguageModelEngine<parallel::Self, P>>(
      source, config, optimizer, test::constant_schedule(optimizer.lr, optimizer.weight_decay),
      test::self_context());
  engine->initialize();
  return engine;
}

/// This rank's share of a batch.
template <class Engine>
Batch share(const Batch& batch, Engine& engine) {
  const auto [first, last] = parallel::share_of(batch.num_sequences(), engine.get_data_parallel_group());
  return sequences_of(batch, first, last);
}

/// Every weight, whole, under its Hugging Face name. Collective.
template <class Engine>
std::map<std::string, Tensor> weights_of(Engine& engine) {
  std::map<std::string, Tensor> weights;
  for (const auto& [name, tensor] : engine.get_per_tensor_param().params) weights[name] = tensor.clone();
  return weights;
}

/// Largest difference of any weight.
double largest_difference(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  double largest = 0;
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) largest = std::max(largest, max_difference(tensor, b.at(name)));
  return largest;
}

/// Uses every output that a language-model head has.
LossTerms all_outputs_loss(const LossInput& input) {
  const auto w = input.batch.token_fields.at("w").to(input.log_probs.scalar_type());
  auto sum = input.log_probs.mul(w)
                 .sub(input.entropy.mul(0.3))
                 .add(input.sum_pi_squared.mul(0.7))
                 .sub(input.mean_log_probs.mul(w.mul(0.05)))
                 .mul(input.batch.loss_mask)
                 .sum();
  return {{"loss", sum, ordered_sum(input.batch.loss_mask)}};
}

}  // namespace

TEST_CASE("weights that every rank holds stay bit-equal, and are those of one rank") {
  RankGroups world;
  const int size = world.world.size();
  for (const auto* name : {"qwen3", "llama"}) {
    const int tp = std::string_view(name) == "llama" ? 2 : size;
    for (const bool sequence_parallel : {false, true}) {
      CAPTURE(name);
      CAPTURE(sequence_parallel);
      Grid grid(tp);
      const Fixture fixture(name);
      const auto engine = engine_on<LanguageModelEngine<Mpi, optimizer::Fp32>>(
          grid, fixture, with_sequence_parallel(sequence_parallel));
      const auto single = alone<optimizer::Fp32>({fixture.folder, "", 1});
      std::mt19937_64 random(11);
      for (int step = 0; step < 5; ++step) {
        const auto batch = test::random_batch(random, {7, 3, 1, 9, 2, 4}, engine->config().vocab_size);
        CHECK(engine->train_batch(share(batch, *engine), SftLoss{}).step.stepped);
        single->train_batch(batch, SftLoss{});
      }
      std::vector<double> replicated;
      for (const auto& param : engine->param_buffer().params)
        if (param.desc->placement == PlacementKind::replicated)
          for (const double value : numbers(*param.value)) replicated.push_back(value);
      CHECK(replicated.size() > 100);
      CHECK(same_bits_everywhere(replicated, grid.world));
      CHECK(largest_difference(weights_of(*engine), weights_of(*single)) < 1e-3);
      std::map<std::string, Tensor> norms, single_norms;
      for (const auto& [weight, tensor] : weights_of(*engine))
        if (contains(weight, "norm")) norms[weight] = tensor;
      for (const auto& [weight, tensor] : weights_of(*single))
        if (contains(weight, "norm")) single_norms[weight] = tensor;
      CHECK(largest_difference(norms, single_norms) < 1e-5);
    }
  }
}

TEST_CASE("random weights do not depend on the ranks that share them") {
  RankGroups world;
  for (const auto* name : {"qwen2", "qwen3"}) {
    CAPTURE(name);
    const ModelConfig source{"", Fixture(name).folder + "/config.json", 77};
    Grid grid(world.world.size());
    const auto engine = engine_on<LanguageModelEngine<Mpi, optimizer::Fp64>>(grid, source);
    const auto single = alone<optimizer::Fp64>(source);
    CHECK(largest_difference(weights_of(*engine), weights_of(*single)) == 0);
  }
}

TEST_CASE_TEMPLATE("padding of the vocabulary takes no part in any softmax", P, optimizer::Fp64,
                   optimizer::Fp32) {
  RankGroups world;
  const Fixture fixture("qwen3");  // 331 tokens: no number of ranks divides them
  for (const std::int64_t divisor : {1, 64, 200}) {
    CAPTURE(divisor);
    Grid grid(world.world.size());
    auto config = with_sequence_parallel(true, divisor);
    config.calculate_entropy = true;
    const auto engine = engine_on<LanguageModelEngine<Mpi, P>>(grid, fixture, config);
    const auto rows = engine->module().word_embeddings.desc.shape[0];
    CHECK(rows >= 331);
    CHECK(rows % (divisor * grid.tp()) == 0);
    // Whatever lies in the padding, here and in the file's own rows of other ranks.
    auto& embedding = engine->module().word_embeddings;
    const auto held = std::clamp<std::int64_t>(331 - grid.state.context().place.tp * embedding.value.size(0),
                                               0, embedding.value.size(0));
    embedding.value.narrow(0, held, embedding.value.size(0) - held).fill_(99.0);
    const auto result = engine->forward_backward_batch(fixture.batch(), SftLoss{});
    CHECK(max_difference(result.log_probs.neg(), fixture.expected.tensor("token_loss").reshape({-1})) < 5e-5);
    CHECK(max_difference(result.entropy, fixture.expected.tensor("entropy").reshape({-1})) < 5e-5);
    const auto logits = engine->logits(fixture.batch());
    CHECK(logits.size(1) == 331);
    CHECK(max_difference(logits, fixture.expected.tensor("logits").reshape({-1, 331})) < 5e-5);
    for (const auto& [name, tensor] : engine->get_per_tensor_param().params)
      if (contains(name, "embed_tokens")) CHECK(tensor.size(0) == 331);
    // A loss that looks at the entropy has a finite gradient, also where a rank has padding alone.
    engine->optimizer_zero_grad();
    auto with_entropy = fixture.batch();
    with_entropy.token_fields.set("w", test::waves(with_entropy.num_tokens()));
    engine->forward_backward_batch(with_entropy, [](const LossInput& input) -> LossTerms {
      return {{"loss", input.log_probs.sub(input.entropy).sum(), 1.0}};
    });
    CHECK(std::isfinite(engine->optimizer().grad_norm()));
  }
}

TEST_CASE("vocab_parallel_cross_entropy: by hand, at every number of ranks") {
  RankGroups groups;
  auto& world = groups.world;
  const parallel::TensorParallelGroup group(world);
  const auto own_columns = [&](const Tensor& whole) {
    const auto [first, last] =
        tensor_parallel::vocab_range_from_global_vocab_size(whole.size(1), world.rank(), world.size());
    return whole.narrow(1, first, last - first).contiguous();
  };

  // All logits 0 over five tokens, of which ranks hold padding too.
  const auto zero = own_columns(zeros({2, 5}, at::kDouble));
  const auto flat = tensor_parallel::vocab_parallel_cross_entropy(zero, test::longs({3, -100}), 0, 5, group);
  CHECK(flat.loss[0].item<double>() == doctest::Approx(1.6094379));
  CHECK(flat.loss[1].item<double>() == 0);

  const auto logits =
      test::doubles({0.3, -1.2, 2.0, 0.7, -0.4, 1.1, 0.0, 0.9, -2.0, 0.5, 1.5, -0.3}).view({2, 6});
  const auto target = test::longs({2, 5});
  const auto log_p = logits.log_softmax(-1);
  const auto d_loss = test::doubles({0.7, -1.3});
  for (const double smoothing : {0.0, 0.1}) {
    CAPTURE(smoothing);
    const double s = smoothing * 6 / 5;
    const auto expected =
        log_p.gather(1, target.unsqueeze(1)).squeeze(1).mul(s - 1).sub(log_p.mean(-1).mul(s));
    auto own = own_columns(logits);
    const auto found = tensor_parallel::vocab_parallel_cross_entropy(own, target, smoothing, 6, group);
    CHECK(max_difference(found.loss, expected) < 1e-14);
    CHECK(same_bits_everywhere(numbers(found.loss), world));
    tensor_parallel::vocab_parallel_cross_entropy_backward(own, target, found, d_loss, smoothing, 6, group);
    auto gradient = log_p.exp().sub(s / 6);
    gradient.scatter_add_(1, target.unsqueeze(1), zeros({2, 1}, at::kDouble).fill_(s - 1));
    CHECK(max_difference(own, own_columns(gradient.mul(d_loss.unsqueeze(1)))) < 1e-14);
  }

  // Whole rows where a share is due, ids of no rank.
  const auto error = [&](const Tensor& given, std::int64_t id) {
    return error_of([&] {
      tensor_parallel::vocab_parallel_cross_entropy(given, test::longs({id, 0}), 0, 6, group);
    });
  };
  if (world.size() > 1) CHECK(contains(error(logits, 2), "not gathered ones"));
  CHECK(contains(error(own_columns(logits), 8), "target 8 at position 0 is outside the vocabulary of 6"));
  CHECK(contains(error(own_columns(logits), -1), "target -1"));
}

TEST_CASE("ids outside the vocabulary are told at every number of ranks") {
  RankGroups world;
  Grid grid(world.world.size());
  const Fixture fixture("qwen2");
  const auto engine =
      engine_on<LanguageModelEngine<Mpi, optimizer::Fp32>>(grid, fixture, with_sequence_parallel(false, 64));
  for (const std::int64_t id : {320, 383, 400, -1}) {
    auto batch = fixture.batch().separate();
    batch.input_ids[3] = id;
    CHECK(contains(error_of([&] { engine->infer_batch(batch); }), concat(id)));
    batch = fixture.batch().separate();
    batch.labels[3] = id;
    CHECK(contains(error_of([&] { engine->infer_batch(batch); }), concat(id)));
  }
  auto batch = fixture.batch().separate();
  batch.labels[3] = -100;
  CHECK(engine->infer_batch(batch).log_probs[3].item<double>() == 0);
}

TEST_CASE("every output of a head and its gradient, with temperatures, fused and on whole logits") {
  RankGroups world;
  const Fixture fixture("qwen3");
  std::mt19937_64 random(5);
  auto batch = test::random_batch(random, {6, 1, 9, 4, 11}, 331);
  batch.token_fields.set("w", test::waves(batch.num_tokens()));
  for (const double temperature : {1.0, 0.6, 0.02}) {
    batch.temperature = test::doubles({temperature, 1.0, 1.7 * temperature, 1.0, 0.9});
    for (const bool fused : {true, false})
      for (const bool sequence_parallel : {false, true}) {
        CAPTURE(temperature);
        CAPTURE(fused);
        CAPTURE(sequence_parallel);
        auto config = with_sequence_parallel(sequence_parallel);
        config.calculate_entropy = config.calculate_sum_pi_squared = config.calculate_mean_log_probs = true;
        config.use_fused_kernels = fused;
        Grid grid(world.world.size());
        const auto check = [&]<class P>(P, double bound) {
          const auto engine = engine_on<LanguageModelEngine<Mpi, P>>(grid, fixture, config);
          const auto single = alone<optimizer::Fp64>({fixture.folder, "", 1}, config);
          auto found = engine->forward_backward_batch(share(batch, *engine), all_outputs_loss);
          auto expected = single->forward_backward_batch(batch, all_outputs_loss);
          const auto found_parts = found.parts(), expected_parts = expected.parts();
          for (std::size_t i = 0; i < found_parts.size(); ++i) {
            CHECK(max_difference(*found_parts[i], *expected_parts[i]) < bound);
            CHECK(same_bits_everywhere(numbers(*found_parts[i]), grid.world));
          }
          const double norm = single->optimizer().grad_norm();
          CHECK(std::abs(engine->optimizer().grad_norm() / norm - 1) < bound);
        };
        check(optimizer::Fp64{}, 1e-10);
        if (temperature >= 0.6) check(optimizer::Fp32{}, 5e-4);
      }
  }
}

TEST_CASE("label smoothing is that of the whole vocabulary, however many ranks share it") {
  RankGroups world;
  const Fixture fixture("qwen2");
  auto config = with_sequence_parallel(true);
  config.calculate_mean_log_probs = true;
  Grid grid(world.world.size());
  const auto engine = engine_on<LanguageModelEngine<Mpi, optimizer::Fp64>>(grid, fixture, config);
  const auto batch = fixture.batch();
  const auto log_p = engine->logits(batch).log_softmax(-1);
  const auto own = log_p.gather(1, batch.labels.unsqueeze(1)).squeeze(1);
  const double s = 0.2 * 320 / 319;
  const auto expected = own.mul(s - 1).sub(log_p.mean(-1).mul(s)).mul(batch.loss_mask).sum();
  const auto result = engine->forward_backward_batch(batch, LabelSmoothedLoss{0.2, 320});
  CHECK(std::abs(result.loss() - expected.item<double>() / batch.loss_mask.sum().item<double>()) < 1e-12);
  // Its gradient along a change of one weight.
  const auto loss_at = [&](double shift) {
    auto weight = engine->module().layers[1].mlp.linear_fc2_weight.value;
    weight.add_(shift);
    const double loss = engine->infer_batch(batch, LabelSmoothedLoss{0.2, 320}).loss();
    weight.sub_(shift);
    return loss;
  };
  auto slope = engine->module().layers[1].mlp.linear_fc2_weight.main_grad.sum();
  grid.world.all_reduce(slope, ReduceOp::sum);
  CHECK(std::abs((loss_at(1e-6) - loss_at(-1e-6)) / 2e-6 - slope.item<double>()) < 1e-6);
  CHECK(contains(error_of([&] {
                   engine->infer_batch(batch, LabelSmoothedLoss{1.0, 320});
                 }),
                 "label_smoothing"));
}

TEST_CASE("a critic: recorded values and gradients, one head on all ranks") {
  RankGroups world;
  const Fixture fixture("qwen3_value");
  auto batch = fixture.batch();
  batch.token_fields.set("returns", fixture.expected.tensor("returns").reshape({-1}));
  rl::ValueLoss loss;
  loss.config.cliprange_value.reset();
  for (const int tp : {world.world.size(), 2})
    for (const bool sequence_parallel : {false, true}) {
      CAPTURE(sequence_parallel);
      Grid grid(tp);
      const auto engine = engine_on<ValueModelEngine<Mpi, optimizer::Fp32>>(
          grid, fixture, with_sequence_parallel(sequence_parallel));
      const auto own = share(batch, *engine);
      const auto result = engine->forward_backward_batch(own, loss);
      CHECK(std::abs(result.loss() - fixture.expected.tensor("mean_loss").item<double>()) < 1e-5);
      if (engine->get_data_parallel_size() == 1)
        CHECK(max_difference(result.values, fixture.expected.tensor("values").reshape({-1})) < 5e-5);
      const auto& gradient = engine->module().head().weight.main_grad;
      CHECK(max_difference(gradient, fixture.expected.tensor("grad.score.weight")) <
            test::gradient_bound(fixture.expected.tensor("grad.score.weight")));
      CHECK(same_bits_everywhere(numbers(gradient), grid.world));
      const double norm = fixture.expected.tensor("grad_norm").item<double>();
      CHECK(std::abs(engine->optimizer().grad_norm() / norm - 1) < 1e-4);
    }
}

TEST_CASE("a critic with biases: sequences of one token under sequence parallelism") {
  RankGroups world;
  const Fixture fixture("qwen3_value");
  // Row biases, in a copy of the config with random weights.
  const test::TemporaryFolder folder;
  auto text = test::read_file(fixture.folder + "/config.json");
  for (const auto* key : {"attention_bias", "mlp_bias"}) {
    const auto from = concat("\"", key, "\": false");
    if (const auto at = text.find(from); at != text.npos)
      text.replace(at, from.size(), concat("\"", key, "\": true"));
  }
  const auto config = test::write_file(folder / "config.json", text).string();
  Grid grid(world.world.size());
  const ModelConfig source{"", config, 5};
  const auto engine = engine_on<ValueModelEngine<Mpi, optimizer::Fp64>>(grid, source, [] {
    auto settings = with_sequence_parallel(true);
    settings.micro_batch_size = 1;
    return settings;
  }());
  auto single = ValueModelEngine<parallel::Self, optimizer::Fp64>(
      source, {}, test::adam(), test::constant_schedule(1e-3), test::self_context());
  single.initialize();
  std::mt19937_64 random(8);
  auto batch = test::random_batch(random, {1, 4, 1}, engine->config().vocab_size);
  batch.loss_mask.fill_(1.0);
  batch.token_fields.set("returns", test::waves(batch.num_tokens()));
  rl::ValueLoss loss;
  loss.config.cliprange_value.reset();
  engine->forward_backward_batch(batch, loss);
  single.forward_backward_batch(batch, loss);
  CHECK(std::abs(engine->optimizer().grad_norm() / single.optimizer().grad_norm() - 1) < 1e-10);
}

TEST_CASE("ranks that share layers start from one seed and one schedule") {
  RankGroups world;
  Grid grid(world.world.size());
  const Fixture fixture("qwen3");
  const bool last = world.world.rank() + 1 == world.world.size();
  using E = LanguageModelEngine<Mpi, optimizer::Fp32>;
  const auto sentence = "ranks must start from the same weights and settings";
  CHECK(contains(error_of([&] {
                   engine_on<E>(grid, ModelConfig{"", fixture.folder + "/config.json", last ? 2u : 1u});
                 }),
                 sentence));
  auto schedule = test::constant_schedule(1e-3);
  schedule.lr_decay_steps = 10;
  if (last) schedule.lr_warmup_steps = 2;
  E engine({fixture.folder, "", 1}, {}, test::adam(), schedule, grid.state.context());
  const auto text = error_of([&] { engine.initialize(); });
  CHECK(contains(text, sentence));
  CHECK(contains(text, "lr_warmup_steps 2"));
}

TEST_CASE_TEMPLATE("NaN on one rank: all skip, nothing changes, the next step is as if it had not been", E,
                   LanguageModelEngine<Mpi, optimizer::Fp32>,
                   LanguageModelEngine<Mpi, optimizer::Bf16WithFp32Main, optimizer::Distributed>) {
  RankGroups world;
  Grid grid(2);
  const Fixture fixture("qwen3");
  const auto engine = engine_on<E>(grid, fixture, with_sequence_parallel(true));
  const auto other = engine_on<E>(grid, fixture, with_sequence_parallel(true));
  const auto batch = share(fixture.batch("train.", 0, 4), *engine);
  const auto state = [](auto& e) {
    auto all = numbers(e.param_buffer().values);
    for (const auto& part :
         {e.param_buffer().main_params, e.optimizer().inner().exp_avg, e.optimizer().inner().exp_avg_sq})
      for (const double value : numbers(part)) all.push_back(value);
    all.push_back(static_cast<double>(e.optimizer().inner().updates));
    return all;
  };
  engine->train_batch(batch, SftLoss{});
  other->train_batch(batch, SftLoss{});
  for (int rank = 0; rank < world.world.size(); ++rank) {
    const auto before = state(*engine);
    engine->optimizer_zero_grad();
    engine->forward_backward_batch(batch, SftLoss{});
    if (world.world.rank() == rank && engine->optimizer().main_grads().numel() > 0)
      engine->optimizer().main_grads()[0] = std::numeric_limits<double>::quiet_NaN();
    const auto step = engine->optimizer_step();
    CHECK(!step.stepped);
    CHECK(step.found_inf);
    CHECK(state(*engine) == before);
  }
  engine->train_batch(batch, SftLoss{});
  other->train_batch(batch, SftLoss{});
  CHECK(state(*engine) == state(*other));
}

TEST_CASE("zeros of gradients are counted once, and padding is none") {
  RankGroups world;
  const Fixture fixture("qwen3");
  auto optimizer = test::adam();
  optimizer.log_num_zeros_in_grad = true;
  std::mt19937_64 random(21);
  const auto batch = test::random_batch(random, {6, 3}, 331);
  auto single = LanguageModelEngine<parallel::Self, optimizer::Fp64>(
      {fixture.folder, "", 1}, {}, optimizer, test::constant_schedule(1e-3), test::self_context());
  single.initialize();
  const auto expected = single.train_batch(batch, SftLoss{}).step.num_zeros;
  CHECK(expected >= 0);
  for (const std::int64_t divisor : {1, 200}) {
    Grid grid(world.world.size());
    const auto engine = engine_on<LanguageModelEngine<Mpi, optimizer::Fp64>>(
        grid, fixture, with_sequence_parallel(true, divisor), optimizer);
    CHECK(engine->train_batch(batch, SftLoss{}).step.num_zeros == expected);
  }
}

TEST_CASE("fewer tokens than ranks, and a micro-batch of none") {
  RankGroups world;
  const Fixture fixture("qwen2");
  Grid grid(world.world.size());
  const auto engine =
      engine_on<LanguageModelEngine<Mpi, optimizer::Fp64>>(grid, fixture, with_sequence_parallel(true));
  const auto single = alone<optimizer::Fp64>({fixture.folder, "", 1});
  std::mt19937_64 random(3);
  for (const auto& lengths : {test::Lengths{2}, test::Lengths{1, 1, 3}, test::Lengths{5, 2}}) {
    const auto batch = test::random_batch(random, lengths, 320);
    const auto found = engine->train_batch(batch, SftLoss{}),
               expected = single->train_batch(batch, SftLoss{});
    CHECK(std::abs(found.loss() - expected.loss()) < 1e-10);
    if (expected.step.stepped) CHECK(std::abs(found.step.grad_norm - expected.step.grad_norm) < 1e-10);
  }
}

TEST_CASE_TEMPLATE("16-bit precisions stay near the recorded loss", P, optimizer::Bf16WithFp32Main,
                   optimizer::Fp16WithLossScaler) {
  RankGroups world;
  for (const bool sequence_parallel : {false, true}) {
    Grid grid(world.world.size());
    const Fixture fixture("qwen3");
    auto config = test::adam();
    config.initial_loss_scale = 65536;
    const auto engine = engine_on<LanguageModelEngine<Mpi, P>>(
        grid, fixture, with_sequence_parallel(sequence_parallel), config);
    const auto result = engine->train_batch(fixture.batch(), SftLoss{});
    CHECK(std::abs(result.loss() - fixture.expected.tensor("mean_loss").item<double>()) < 0.02);
    CHECK(std::abs(result.step.grad_norm / fixture.expected.tensor("grad_norm").item<double>() - 1) < 0.03);
  }
}

TEST_CASE("generation continues as one rank does, the same on every rank") {
  RankGroups world;
  const Fixture fixture("qwen3");
  for (const bool sequence_parallel : {false, true}) {
    Grid grid(world.world.size());
    auto config = with_sequence_parallel(sequence_parallel);
    config.forward_only = true;
    const auto engine = engine_on<LanguageModelEngine<Mpi, optimizer::Fp64>>(grid, fixture, config);
    const auto single = alone<optimizer::Fp64>({fixture.folder, "", 1}, config);
    std::mt19937_64 random(9);
    const auto prompts = validated(test::random_batch(random, {5, 1, 8}, 331), 331);
    model::SamplingConfig sampling;
    sampling.max_new_tokens = 12;
    for (const bool greedy : {true, false}) {
      sampling.greedy = greedy;
      CHECK(model::generate(engine->module(), prompts, sampling) ==
            model::generate(single->module(), prompts, sampling));
    }
  }
}

TEST_CASE("ranks of one group must be given one batch; a policy's static extent is the context's") {
  RankGroups world;
  Grid grid(world.world.size());
  const Fixture fixture("qwen2");
  const auto engine = engine_on<LanguageModelEngine<Mpi, optimizer::Fp32>>(grid, fixture);
  auto batch = fixture.batch().separate();
  if (world.world.rank() == 1) batch.input_ids[0] = 7;
  const auto text = error_of([&] { engine->infer_batch(batch); });
  CHECK(contains(text, "must be given the same batch"));
  CHECK(contains(text, "get_data_parallel_rank"));
  batch = fixture.batch();
  if (world.world.rank() == 1) batch.options.micro_batch_size = 1;
  CHECK(contains(error_of([&] { engine->infer_batch(batch); }), "micro_batch_size 1"));
  batch = fixture.batch();
  batch.token_fields.set("a", zeros({batch.num_tokens()}, at::kDouble).fill_(world.world.rank()));
  CHECK(contains(error_of([&] { engine->infer_batch(batch); }), "must be given the same batch"));

  using Three = MegatronEngineWithLMHead<
      parallel::Megatron<parallel::Tp<3>, parallel::Pp<1>, parallel::Cp<1>, parallel::Ep<1>, Mpi>,
      optimizer::Local<optimizer::AdamW, optimizer::Fp32>, scheduler::OptimizerParamScheduler>;
  const auto refused = error_of([&] {
    Three({fixture.folder, "", 1}, {}, {}, test::constant_schedule(1e-3), grid.state.context());
  });
  CHECK(contains(refused, "3"));
  CHECK(contains(refused, concat(world.world.size())));
}

TEST_CASE("sizes that so many ranks cannot share are refused with both numbers") {
  RankGroups world;
  if (world.world.size() != 4) return;
  Grid grid(4);
  const Fixture fixture("llama");  // 6 heads, 2 kv heads
  const auto text = error_of([&] { engine_on<LanguageModelEngine<Mpi, optimizer::Fp32>>(grid, fixture); });
  CHECK(contains(text, "4"));
  CHECK(contains(text, "6"));
}
