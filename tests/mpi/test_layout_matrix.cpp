// Every valid layout of tensor and data parallelism against recorded numbers: loss, log-probabilities,
// gradients, norms and three optimizer steps, with and without sequence parallelism and a distributed
// optimizer, in micro-batches of 1, 2 and 4 sequences. One job rebuilds the engine for each case. As it is,
// each layout of each model is met twice a precision with other options in turn; MGFL_LAYOUT_MATRIX=whole
// meets all.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mgfl/parallel/share.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/support/engines.hpp"

using namespace mgfl;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using test::Fixture;
using test::max_difference;

namespace {

struct Layout {
  int tp, dp;
  bool sequence_parallel, sharded;
  std::int64_t micro_batch_size;
};

std::string text(const Layout& layout) {
  return concat("tp ", layout.tp, " dp ", layout.dp, layout.sequence_parallel ? " sequence parallel" : "",
                layout.sharded ? " distributed optimizer" : "", " micro-batch ", layout.micro_batch_size);
}

/// Tensors by the names of expected.safetensors.
using Numbers = std::map<std::string, Tensor>;

/// This rank's share of a batch.
template <parallel::HasPlace Group>
Batch share(const Batch& batch, const Group& group) {
  const auto [first, last] = parallel::share_of(batch.num_sequences(), group);
  return sequences_of(batch, first, last);
}

/// Adds every tensor of a state under PREFIX + Hugging Face name, on the first rank. Collective.
template <class Engine>
void add_state(Engine& engine, const Tensor& state, const std::string& prefix, Numbers& numbers) {
  auto whole = engine.optimizer().whole_params(state);
  for (std::size_t i = 0; i < whole.params().size(); ++i) {
    engine.optimizer().gather(whole, i);
    if (engine.context().world->rank() > 0) continue;
    const auto& param = whole.params()[i];
    for (const auto& [name, shape, view] : bridge::hf_tensors(engine.config(), *param.desc, *param.value))
      numbers[prefix + name] = view.reshape(shape).clone();
  }
}

Tensor scalar(double value) { return zeros({1}, at::kDouble).fill_(value); }

/// What training the fixture gives on an engine; what needs all ranks is on the first one. Collective.
template <class Engine, class Group>
Numbers train(Engine& engine, const Fixture& fixture, const Group& data_parallel) {
  Numbers numbers;
  const auto own = share(fixture.batch(), data_parallel);
  const auto result = engine.forward_backward_batch(own, SftLoss{});
  numbers["mean_loss"] = scalar(result.loss());
  numbers["token_loss"] = result.log_probs.neg();
  add_state(engine, engine.optimizer().main_grads(), "grad.", numbers);
  numbers["grad_norm"] = scalar(engine.optimizer().grad_norm());
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto batch = share(fixture.batch("train.", 4 * step, 4 * step + 4), data_parallel);
    const auto trained = engine.train_batch(batch, SftLoss{});
    numbers[concat("train.loss.", step)] = scalar(trained.loss());
    numbers[concat("train.grad_norm.", step)] = scalar(trained.step.grad_norm);
  }
  add_state(engine, engine.param_buffer().main_params, "step3.", numbers);
  return numbers;
}

template <class Engine, class C>
std::unique_ptr<Engine> engine_on(parallel::Context<C> context, const Fixture& fixture,
                                  const Layout& layout) {
  EngineConfig config;
  config.micro_batch_size = layout.micro_batch_size;
  config.sequence_parallel = layout.sequence_parallel;
  const auto optimizer = test::adam();
  auto engine =
      std::make_unique<Engine>(ModelConfig{fixture.folder, "", 1}, config, optimizer,
                               test::constant_schedule(optimizer.lr, optimizer.weight_decay), context);
  engine->initialize();
  return engine;
}

/// The recorded numbers of the precision, or where a model has none in double those of one rank alone.
template <class P>
Numbers expected_numbers(const Fixture& fixture) {
  constexpr bool exact = std::is_same_v<P, optimizer::Fp64>;
  const auto file = fixture.folder + (exact ? "/expected64.safetensors" : "/expected.safetensors");
  if (!std::filesystem::exists(file)) {
    parallel::Self world, alone;
    const auto engine = engine_on<LanguageModelEngine<parallel::Self, P>>(
        parallel::data_parallel_context(world, alone), fixture, {1, 1, false, false, 1});
    return train(*engine, fixture, world);
  }
  const checkpoint::SafetensorsFile recorded(file);
  Numbers numbers;
  for (const auto& name : recorded.names()) numbers[name] = recorded.tensor(name).clone();
  for (std::int64_t step = 0; step < 3; ++step)
    for (const auto* name : {"train.loss", "train.grad_norm"})
      numbers[concat(name, ".", step)] = numbers.at(name).narrow(0, step, 1);
  return numbers;
}

bool starts_with(std::string_view name, std::string_view prefix) {
  return name.substr(0, prefix.size()) == prefix;
}

/// Fp64 within 1e-10 of the recorded numbers, everything else within the fixtures' bounds.
template <class P>
void check(const Numbers& found, const Numbers& expected, const Batch& batch, const Mpi& data_parallel,
           bool is_first) {
  if (is_first)  // it has the whole states
    for (const auto& [name, value] : expected)
      if (starts_with(name, "grad.") || starts_with(name, "step3.")) {
        CAPTURE(name);
        CHECK(found.count(name) == 1);
      }
  constexpr bool exact = std::is_same_v<P, optimizer::Fp64>;
  std::int64_t elements = 0, near = 0;
  double worst_median = 0, largest = 0;
  for (const auto& [name, value] : found) {
    CAPTURE(name);
    Tensor wanted = expected.at(name).reshape({-1}).to(at::kDouble);
    if (name == "token_loss") {
      const auto [first, last] = parallel::share_of(batch.num_sequences(), data_parallel);
      const auto length = batch.num_tokens() / batch.num_sequences();
      wanted = wanted.narrow(0, first * length, (last - first) * length);
    }
    if (value.numel() == 0) continue;
    const Tensor difference = value.reshape({-1}).to(at::kDouble).sub(wanted).abs();
    const double most = difference.max().item<double>();
    CHECK(std::isfinite(most));  // a largest one of several would lose a NaN
    if (exact) {
      CHECK(most < 1e-10);
    } else if (starts_with(name, "step3.")) {
      elements += difference.numel();
      near += difference.le(1.5e-6).sum().item<std::int64_t>();
      largest = std::max(largest, most);
      worst_median = std::max(worst_median, difference.median().item<double>());
    } else if (starts_with(name, "grad.")) {
      CHECK(most < test::gradient_bound(wanted));
    } else if (name == "mean_loss") {
      CHECK(most < 1e-5);
    } else if (name == "token_loss") {
      CHECK(most < 5e-5);
    } else if (starts_with(name, "train.loss")) {
      CHECK(most < 3e-5);
    } else {
      CHECK(most < 1e-4 * wanted.item<double>());  // norms
    }
  }
  if (elements == 0) return;
  CHECK(static_cast<double>(near) >= 0.99 * static_cast<double>(elements));
  CHECK(largest < 1e-3);
  CHECK(worst_median < 5e-7);
}

/// The layouts of up to `ranks` ranks that the model can be trained in.
std::vector<std::pair<int, int>> layouts_of(const model::TransformerConfig& config, int ranks) {
  std::vector<std::pair<int, int>> layouts;
  for (int tp = 1; tp <= ranks; ++tp) {
    const auto groups = config.num_query_groups;
    if (config.num_attention_heads % tp != 0 || config.ffn_hidden_size % tp != 0 ||
        (groups % tp != 0 && tp % groups != 0))
      continue;
    for (int dp = 1; tp * dp <= ranks; ++dp) layouts.emplace_back(tp, dp);
  }
  return layouts;
}

class Matrix : public RankGroups {
 public:
  /// Each layout of the fixture's model, with all options or with two choices of them.
  template <class P>
  void run(const std::string& name) {
    const Fixture fixture(name);
    const auto config = bridge::read_hf_config(fixture.folder).config;
    const auto expected = expected_numbers<P>(fixture);
    const auto* asked = std::getenv("MGFL_LAYOUT_MATRIX");
    const bool whole = asked != nullptr && std::string_view(asked) == "whole";
    for (const auto& [tp, dp] : layouts_of(config, world.size())) {
      std::vector<Layout> options;
      for (const bool sequence_parallel : {false, true})
        for (const bool sharded : {false, true})
          for (const std::int64_t micro_batch_size : {1, 2, 4})
            if (tp > 1 || !sequence_parallel)
              options.push_back({tp, dp, sequence_parallel, sharded, micro_batch_size});
      if (!whole) {
        // A stride prime to the number of options meets them all in turn.
        const auto next = [&] { return options[5 * turn_++ % options.size()]; };
        const auto one = next(), other = next();
        options = {one, other};
      }
      ++layouts;
      auto ranks = world.split(world.rank() < tp * dp ? 0 : 1, world.rank(), "layout");
      std::optional<parallel::ParallelState<Mpi>> state;
      if (world.rank() < tp * dp)
        state.emplace(std::move(ranks), parallel::ModelParallelSizes{.tensor_model_parallel_size = tp});
      for (const auto& layout : options) {
        const auto label = text(layout);
        CAPTURE(label);
        if (state && layout.sharded)
          run_case<LanguageModelEngine<Mpi, P, optimizer::Distributed>, P>(*state, fixture, layout, expected);
        else if (state)
          run_case<LanguageModelEngine<Mpi, P>, P>(*state, fixture, layout, expected);
        world.barrier();  // ranks without a part wait no longer than a case
      }
      cases += options.size();
    }
  }

  /// `turn`: the options to begin with.
  explicit Matrix(std::size_t turn) : turn_(turn) {}

  std::size_t cases = 0, layouts = 0;

 private:
  template <class E, class P>
  void run_case(parallel::ParallelState<Mpi>& state, const Fixture& fixture, const Layout& layout,
                const Numbers& expected) {
    const auto context = state.context();
    const auto engine = engine_on<E>(context, fixture, layout);
    check<P>(train(*engine, fixture, *context.data_parallel), expected, fixture.batch(),
             *context.data_parallel, context.world->rank() == 0);
  }

  std::size_t turn_;
};

}  // namespace

TEST_CASE_TEMPLATE("every layout gives the recorded numbers", P, optimizer::Fp64, optimizer::Fp32) {
  Matrix matrix(std::is_same_v<P, optimizer::Fp64> ? 0 : 1);
  for (const auto* name : {"llama", "mistral", "qwen2", "qwen3"}) {
    CAPTURE(name);
    matrix.run<P>(name);
  }
  if (matrix.world.size() == 8) CHECK(matrix.layouts == 54);  // of all four models
  if (matrix.world.rank() == 0) std::printf("%zu cases\n", matrix.cases);
}
